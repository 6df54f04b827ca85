"""What to run and how: the one description every backend translates."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from openenv_sandbox.capabilities import Exposure, IsolationWish, Protocol

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LABEL_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
_HOST = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z"
)
RESERVED_LABEL_PREFIX = "oe-"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortSpec(_Frozen):
    """A port inside the sandbox that shall be reachable; a bare number means one with the defaults."""

    number: int = Field(ge=1, le=65535)
    visibility: Exposure | None = Field(default=None, description="None: as the spec's exposure says.")
    protocol: Protocol = "http"


class Resources(_Frozen):
    """Sizes wanted; None leaves the backend's default. Rounded up to the next size sold, never down."""

    cpus: float | None = Field(default=None, gt=0, description="Cores; may be fractional.")
    memory_mb: int | None = Field(default=None, gt=0, description="Memory in MiB.")
    disk_mb: int | None = Field(default=None, gt=0, description="Disk in MiB.")
    gpus: str | None = Field(
        default=None, pattern=r"^[A-Za-z*][A-Za-z0-9*_.-]*(:[1-9][0-9]*)?$", description='"H100:2".'
    )

    @property
    def gpu(self) -> tuple[str, int] | None:
        """The model and the count of ``gpus``."""
        if self.gpus is None:
            return None
        model, _, count = self.gpus.partition(":")
        return model, int(count or 1)


class RegistryAuth(_Frozen):
    """The login of an image registry."""

    username: str = Field(min_length=1)
    password: SecretStr


class NetworkPolicy(_Frozen):
    """What the workload may reach. The port of the server stays reachable under every policy."""

    mode: Literal["full", "none", "allowlist"] = "full"
    hosts: tuple[str, ...] = Field(default=(), description='Host names; "*.example.org" is a wildcard.')
    cidrs: tuple[str, ...] = ()

    @field_validator("hosts")
    @classmethod
    def _hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not _HOST.match(host):
                raise ValueError(f"{host!r} is no host name (no scheme, port or path; '*.' in front is a wildcard)")
        return value

    @field_validator("cidrs")
    @classmethod
    def _cidrs_are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for cidr in value:
            ipaddress.ip_network(cidr, strict=False)
        return value

    @model_validator(mode="after")
    def _entries_only_with_allowlist(self) -> NetworkPolicy:
        entries = bool(self.hosts or self.cidrs)
        if entries and self.mode != "allowlist":
            raise ValueError(f'hosts and cidrs need mode="allowlist", not {self.mode!r}')
        if self.mode == "allowlist" and not entries:
            raise ValueError('mode="allowlist" without hosts or cidrs reaches nothing: say mode="none"')
        return self


class Timeouts(_Frozen):
    """Every timer, in seconds. None of them is implied by another.

    ``lifetime`` None means ready + episode + grading margin. ``step`` None waits as long as the session lives.
    ``episode`` is part of that sum and nothing else: no call is cut by it. At the end of its lifetime the backend ends
    the sandbox; where the backend ends none (``lifetime="none"``), the process that owns it deletes it.
    """

    prepare: float = Field(default=1800.0, gt=0, description="Building or pulling the image.")
    create: float = Field(default=120.0, gt=0, description="From the create request to a sandbox.")
    ready: float = Field(default=120.0, gt=0, description="From the sandbox to the first good /health.")
    step: float | None = Field(default=60.0, gt=0, description="One reset, step or state call.")
    exec: float | None = Field(default=60.0, gt=0, description="One command, unless the call says otherwise.")
    idle: float | None = Field(default=None, gt=0, description="Unused for so long, the client lets the sandbox go.")
    episode: float = Field(default=3600.0, gt=0, description="The whole use of the sandbox after it is ready.")
    cleanup: float = Field(default=30.0, gt=0, description="Waiting for a delete before it becomes a pending one.")
    margin: float = Field(default=300.0, ge=0, description="Grading after the episode.")
    lifetime: float | None = Field(default=None, gt=0, description="Server-side end of the sandbox.")

    @property
    def shortest_lifetime(self) -> float:
        """The shortest lifetime under which nothing is cut in mid-use, in seconds."""
        return self.ready + self.episode + self.margin

    @property
    def effective_lifetime(self) -> float:
        """The lifetime that applies, in seconds."""
        return self.lifetime if self.lifetime is not None else self.shortest_lifetime

    @model_validator(mode="after")
    def _lifetime_covers_the_use(self) -> Timeouts:
        if self.lifetime is not None and self.lifetime < self.shortest_lifetime:
            raise ValueError(
                f"lifetime {self.lifetime:g} s is shorter than ready + episode + margin = "
                f"{self.ready:g} + {self.episode:g} + {self.margin:g} s; raise it or shorten the episode"
            )
        return self


def _as_argv(value: object) -> object:
    return ("/bin/sh", "-c", value) if isinstance(value, str) else value


def _as_ports(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        return value
    return tuple({"number": item} if isinstance(item, int) else item for item in value)


def _as_network(value: object) -> object:
    return {"mode": value} if isinstance(value, str) else value


class SandboxSpec(_Frozen):
    """One sandbox.

    Attributes:
        image: Folder, registry ref, ``template:ID`` or ``snapshot:ID``.
        pull: ``missing`` uses what the backend already has; ``always`` asks the registry again.
        registry_auth: Login of the registry that the image, or a folder's base image, comes from. None: what
            ``[image.registries]`` of the user's configuration or the docker command line has.
        command: Replaces the image's entrypoint and command. A string runs by ``/bin/sh -c``.
        port: Where the environment's server listens.
        ports: Further ports; many backends can publish only those declared here.
        env: Environment variables of the server, readable by anyone who may inspect the sandbox.
        secrets: Like ``env``, given by the least readable way the backend has, and masked everywhere.
        resources: Sizes.
        network: What the workload may reach: ``"full"``, ``"none"`` or an allowlist.
        exposure: ``public`` accepts that anyone who knows the address reaches the port; a backend that can keep it
            private may do so.
        isolation: The least isolation accepted.
        hardening: ``strict`` asks for the most restricted profile of the backend.
        reload: For authors: the server starts anew when a source file of its folder changes.
        labels: The user's own labels.
        user: Runs the server as this user instead of the image's.
        workdir: Working directory instead of the image's.
        timeouts: Every timer.
        trust: The user vouches for remote code in ``image``.
        provider_options: Options of the backend for this sandbox; checked against its ``Options``.
    """

    image: str = Field(min_length=1)
    pull: Literal["missing", "always"] = "missing"
    registry_auth: RegistryAuth | None = None
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_as_argv)] = None
    port: int = Field(default=8000, ge=1, le=65535)
    ports: Annotated[tuple[PortSpec, ...], BeforeValidator(_as_ports)] = ()
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretStr] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    network: Annotated[NetworkPolicy, BeforeValidator(_as_network)] = Field(default_factory=NetworkPolicy)
    exposure: Exposure = "private"
    isolation: IsolationWish = "none"
    hardening: Literal["default", "strict"] = "default"
    reload: bool = False
    labels: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    timeouts: Timeouts = Field(default_factory=Timeouts)
    trust: bool = False
    provider_options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("env", "secrets")
    @classmethod
    def _names_are_shell_safe(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, text in value.items():
            if not _ENV_NAME.match(name):
                raise ValueError(f"{name!r} is not an environment variable name ([A-Za-z_][A-Za-z0-9_]*)")
            if "\0" in (text.get_secret_value() if isinstance(text, SecretStr) else text):
                raise ValueError(f"the value of {name!r} contains a NUL character")
        return value

    @field_validator("labels")
    @classmethod
    def _labels_fit_every_backend(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _LABEL_NAME.match(name) or not _LABEL_VALUE.match(text):
                raise ValueError(
                    f"label {name!r}: names are up to 63 of [a-z0-9._-], values up to 63 of [A-Za-z0-9._-], "
                    "both beginning and ending with a letter or digit"
                )
        return value

    @field_validator("command")
    @classmethod
    def _command_is_not_empty(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("an empty command starts nothing")
        if any("\0" in word for word in value or ()):
            raise ValueError("a command cannot contain NUL characters")
        return value

    @property
    def all_ports(self) -> tuple[PortSpec, ...]:
        """``port`` first, then ``ports`` without repetition; each with its visibility."""
        declared = {p.number: p for p in self.ports}
        first = declared.pop(self.port, PortSpec(number=self.port))
        ports = (first, *declared.values())
        return tuple(
            port if port.visibility else port.model_copy(update={"visibility": self.exposure}) for port in ports
        )

    def plain_secrets(self) -> dict[str, str]:
        """The secrets' values, for the one call that hands them over."""
        return {name: value.get_secret_value() for name, value in self.secrets.items()}
