"""One generation of the SDK that e2b and its fork novita share, behind the few calls that are needed here.

The two generations have the same REST models and the same process protocol; they differ in module names, in some
request bodies and in how the process stubs are called, which `Sdk`'s subclasses in the provider modules say.

Commands use the SDK's generated stubs, not ``commands.run``: that one decodes output as UTF-8, runs everything through
``/bin/bash -l`` (which a small image does not have, and which resets PATH) and ends after 60 seconds.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from openenv_providers import _e2b_errors as errors
from openenv_sandbox.backend_kit import digest
from openenv_sandbox.errors import BrokenExtraError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.provider import SandboxRef

STARTED_BY = "root"
"""Commands run as root, so that core can change to any user, by name or number, and can end what it started."""
KEEPALIVE = {"Keepalive-Ping-Interval": "50"}
"""Asks for a sign of life on silent streams, which proxies cut otherwise."""


@dataclass(frozen=True)
class Event:
    """What a process says: ``start`` with its pid, output, or its ``end`` with exit code and status."""

    kind: Literal["start", "stdout", "stderr", "end", "other"]
    data: bytes = b""
    number: int = 0
    exited: bool = True
    status: str = ""


class Sdk(ABC):
    """One SDK with one set of options.

    Attributes:
        root: Its package.
        prefix: Of its environment variables.
        legacy: Domains that the SDK would treat by an older protocol.
    """

    root: ClassVar[str]
    prefix: ClassVar[str]
    legacy: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Any, provider: str) -> None:
        self.options, self.provider = options, provider
        self.key = os.environ.get(f"{self.prefix}_API_KEY") or None
        self.refuse_debug(self.prefix)
        if self.domain in self.legacy:
            raise ConfigError(
                f"the domain {self.domain} speaks an older protocol, which is not supported",
                hint=f"unset {self.prefix}_DOMAIN, or name a present one",
            )
        self._client: Any = None

    @staticmethod
    def refuse_debug(prefix: str) -> None:
        """Under this variable the SDK makes nothing, deletes nothing, and sends connections to this machine.

        Raises:
            ConfigError: It is set.
        """
        if os.environ.get(f"{prefix}_DEBUG", "").lower() == "true":
            raise ConfigError(
                f"{prefix}_DEBUG=true makes the SDK invent sandboxes and connect to this machine instead",
                hint=f"unset {prefix}_DEBUG",
            )

    def module(self, name: str) -> Any:
        """A module of the SDK."""
        return importlib.import_module(f"{self.root}.{name}")

    @property
    def models(self) -> Any:
        """Its REST models."""
        return self.module("api.client.models")

    @property
    def domain(self) -> str:
        """Of the service, and of sandboxes that say no other."""
        domain = self.options.domain or os.environ.get(f"{self.prefix}_DOMAIN")
        return str(domain or self.default_domain())

    @abstractmethod
    def default_domain(self) -> str:
        """The SDK's."""

    @property
    def scope(self) -> str:
        """Where, and by which key: an account's sandboxes are invisible to another's."""
        url = self.options.api_url or os.environ.get(f"{self.prefix}_API_URL") or f"https://api.{self.domain}"
        return f"{url} {digest(self.key or '')}"

    def params(self) -> dict[str, Any]:
        """Keywords of the SDK's ``ConnectionConfig``."""
        self.refuse_debug(self.prefix)
        return {
            "api_key": self.key,
            "domain": self.domain,
            "api_url": self.options.api_url,
            "sandbox_url": self.options.sandbox_url,
            "request_timeout": self.options.request_timeout_s,
        }

    def config(self, **more: Any) -> Any:
        """One of those."""
        return self.module("connection_config").ConnectionConfig(**self.params(), **more)

    # ------------------------------------------------------------------------------------------------------ REST

    async def rest(
        self,
        group: str,
        call: str,
        *args: Any,
        what: str,
        ref: SandboxRef | None = None,
        template: bool = False,
        accept: tuple[int, ...] = (),
        **kw: Any,
    ) -> Any:
        """One request by the SDK's generated function ``call``; the whole reply, None for an ``accept``-ed status.

        Raises:
            OpenEnvError: By the table of `_e2b_errors`.
        """
        function = self.module(f"api.client.api.{group}.{call}").asyncio_detailed
        acted = not call.startswith("get_")
        try:
            if self._client is None:
                self._client = self.client()
                # Before the SDK reads it: what stands between us and the service refuses in HTML.
                self._client.get_async_httpx_client().event_hooks["response"].append(errors.refuse)
            return await function(*args, client=self._client, **kw)
        except errors.Refused as reply:
            if reply.status in accept:
                return None
            raise errors.from_reply(
                reply.status,
                reply.headers,
                reply.content,
                provider=self.provider,
                what=what,
                ref=ref,
                template=template,
                acted=acted,
            ) from None
        except Exception as error:
            raise errors.from_transport(
                error, provider=self.provider, what=what, ref=ref, key=f"{self.prefix}_API_KEY", acted=acted
            ) from error

    def client(self) -> Any:
        """The REST client; bound to the loop that made it."""
        return self.module("api.client_async").get_api_client(self.config())

    async def aclose(self) -> None:
        """Close it."""
        client, self._client = self._client, None
        if client is not None:
            await client.get_async_httpx_client().aclose()

    # ---------------------------------------------------------------------------------------------------- bodies

    @abstractmethod
    async def create(self, body: Mapping[str, Any], *, key: str, what: str) -> Any:
        """Send one create request with these fields of the model; the reply's model."""

    @abstractmethod
    async def connect(self, ref: SandboxRef, seconds: int, *, what: str) -> Any:
        """Resume, or just ask for, a sandbox, that shall live at least so long; its model with tokens."""

    async def pause(self, ref: SandboxRef, *, what: str) -> None:
        """Freeze it; succeeds where it is frozen already (409)."""
        call = "post_sandboxes_sandbox_id_pause"
        await self.rest("sandboxes", call, ref.id, what=what, ref=ref, accept=(409,), **self.pause_body())

    @abstractmethod
    def pause_body(self) -> dict[str, Any]:
        """Further arguments of the request that pauses."""

    @abstractmethod
    def timeout_body(self, seconds: int) -> Any:
        """The body that sets a sandbox's end."""

    @abstractmethod
    def snapshot_body(self, name: str) -> Any:
        """The body that asks for a snapshot of that name."""

    @abstractmethod
    def template(self, base: str, folder: str, **login: str) -> Any:
        """The SDK's builder of a template on ``base``, with the files of ``folder``; its steps run as root."""

    def begin_build(self, builder: Any, name: str, **keywords: Any) -> Any:
        """Upload and start. Blocks; uploads have no deadline but the caller's."""
        params = {key: value for key, value in self.params().items() if key != "request_timeout"}
        cls = self.module("template_sync.main").Template
        return cls.build_in_background(builder, name, **params, **keywords)

    # ------------------------------------------------------------------------------------------------- processes

    def user_header(self) -> dict[str, str]:
        """Says who runs a command."""
        return {"Authorization": f"Basic {b64encode(f'{STARTED_BY}:'.encode()).decode()}"}

    def handle(self, sandbox_id: str, domain: str | None, version: str, envd_token: str | None) -> Any:
        """The SDK's sandbox object, made from what is known, without a request."""
        from packaging.version import Version

        headers = self.routing(sandbox_id)
        if envd_token:
            headers["X-Access-Token"] = envd_token
        made = self.module("sandbox_async.main").AsyncSandbox(
            sandbox_id=sandbox_id,
            sandbox_domain=domain,
            envd_version=Version(version),
            envd_access_token=envd_token,
            traffic_access_token=None,
            connection_config=self.config(extra_sandbox_headers=headers),
        )
        if not hasattr(made.commands, "_rpc"):
            raise BrokenExtraError(
                f"this version of {self.root.partition('.')[0]} keeps its process client elsewhere than the tested one",
                provider=self.provider,
                hint="the backend's page names the tested version",
            )
        return made

    @abstractmethod
    def routing(self, sandbox_id: str) -> dict[str, str]:
        """Headers by which a proxy finds the sandbox's daemon."""

    @abstractmethod
    def start(
        self, handle: Any, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bool, tag: str
    ) -> AsyncIterator[Event]:
        """Start a process and follow it."""

    @abstractmethod
    def follow(self, handle: Any, pid: int | None, tag: str) -> AsyncIterator[Event]:
        """Follow a running process, by its pid or, where that was never told, by its tag."""

    @abstractmethod
    async def send(self, handle: Any, pid: int, data: bytes) -> None:
        """Send input."""

    @abstractmethod
    async def close_stdin(self, handle: Any, pid: int) -> None:
        """End the input."""

    @abstractmethod
    async def kill(self, handle: Any, pid: int) -> None:
        """End a process by SIGKILL."""

    @abstractmethod
    def code(self, error: BaseException) -> str | None:
        """The Connect code that ``error`` carries, e.g. ``not_found``; None when the connection itself failed."""


def known(value: Any) -> Any:
    """``value``, or None where the SDK's models say that it is not there."""
    return None if type(value).__name__ == "Unset" else value
