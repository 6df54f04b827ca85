"""A spec as the arguments of a modal create, and what modal says about a sandbox as ours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import SandboxInfo, SandboxRef
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.capabilities import Isolation
    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.spec import SandboxSpec

_TUNNELS = "openenv-tunnels"
"""Tag that says which ports were opened, and how, to whoever attaches."""


class ModalOptions(ProviderOptions):
    """Options of modal.

    Attributes:
        profile: Section of ``~/.modal.toml`` to log in with, instead of the variables and the active profile.
        environment: Environment of the workspace; None for the login's own.
        app: Name of the app that holds the sandboxes; made when missing.
        region: Where sandboxes run; None for anywhere.
        runtime: ``vm`` runs them in virtual machines; None for modal's default, gVisor.
        registry_secret: Name of a modal Secret with a registry's login, for images where the spec has none:
            REGISTRY_USERNAME and REGISTRY_PASSWORD, or the keys of AWS or GCP.
        keep_openenv: Folders are built as their author wrote them, without installing the running openenv.
        timeout_s: For one request, in seconds.
    """

    profile: str | None = trusted()
    environment: str | None = None
    app: str = "openenv"
    region: str | None = None
    runtime: Literal["gvisor", "vm"] | None = None
    registry_secret: str | None = None
    keep_openenv: bool = False
    timeout_s: float = 60.0


def refuse_private_tcp(spec: SandboxSpec) -> None:
    """Refuse TCP ports that shall be private.

    Raises:
        CapabilityError: Their only way is an open tunnel.
    """
    for port in spec.all_ports:
        if port.protocol == "tcp" and port.visibility == "private":
            raise CapabilityError(
                f"modal reaches a tcp port only by a tunnel that anyone may use (port {port.number})",
                field=f"ports[{port.number}].visibility",
                provider="modal",
                hint='visibility="public" accepts that',
            )


def needs_bare(prepared: Prepared, spec: SandboxSpec) -> bool:
    """Whether the ENTRYPOINT has to go: there is a command, and the image has one or nobody knows."""
    return spec.command is not None and (prepared.image is None or bool(prepared.image.entrypoint))


def command(prepared: Prepared, spec: SandboxSpec) -> tuple[str, ...]:
    """What is passed at create: the command, or the image's CMD as core found it."""
    if spec.command is not None:
        return spec.command
    return prepared.image.cmd if prepared.image is not None else ()


def tunnels(spec: SandboxSpec) -> dict[int, str]:
    """Ports that get an address of their own, to the protocol."""
    return {port.number: port.protocol for port in spec.all_ports if port.visibility == "public"}


def arguments(spec: SandboxSpec, key: str, opened: Mapping[int, str], options: ModalOptions) -> dict[str, Any]:
    """Keyword arguments of ``Sandbox.create``."""
    import modal

    size, secrets = spec.resources, spec.plain_secrets()
    plain = {name: value for name, value in spec.env.items() if name not in secrets}
    tags = {**spec.labels, KEY: key}
    if opened:
        tags[_TUNNELS] = ".".join(f"{port}-{kind}" for port, kind in opened.items())
    made: dict[str, Any] = {
        "name": key,
        "tags": tags,
        "timeout": math.ceil(spec.timeouts.effective_lifetime),
        "workdir": spec.workdir,
        "encrypted_ports": [port for port, kind in opened.items() if kind == "http"],
        "unencrypted_ports": [port for port, kind in opened.items() if kind == "tcp"],
        "region": options.region,
        "runtime": options.runtime,
    }
    if size.cpus is not None:
        made["cpu"] = (size.cpus, size.cpus)
    if size.memory_mb is not None:
        made["memory"] = (size.memory_mb, size.memory_mb)
    if size.gpus is not None:
        made["gpu"] = size.gpus
        plain, secrets = {}, {**plain, **secrets}  # one Secret instead of two
    if plain:
        made["env"] = plain
    if secrets:
        made["secrets"] = [modal.Secret.from_dict(secrets)]
    if spec.network.mode != "full":
        made["outbound_cidr_allowlist"] = list(spec.network.cidrs)
        if spec.network.hosts:
            made["outbound_domain_allowlist"] = list(spec.network.hosts)
    return made


def described(
    ref: SandboxRef, tags: dict[str, str], returncode: int | None, isolation: Isolation
) -> tuple[SandboxInfo, dict[int, str]]:
    """From the tags: the sandbox, and the ports that were opened."""
    opened = [item.split("-") for item in tags.pop(_TUNNELS, "").split(".") if item]
    expires = tags.get("oe-expires", "")
    info = SandboxInfo(
        ref=SandboxRef(ref.provider, ref.scope, ref.id, tags.get(KEY)),
        status="running" if returncode is None else "stopped",
        labels=tags,
        expires_at=float(expires) if expires.isdigit() else None,
        isolation=isolation,
    )
    return info, {int(port): kind for port, kind in opened}
