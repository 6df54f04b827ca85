"""Refusing, before anything is created, what a backend cannot honour; and rounding sizes up to those sold."""

from __future__ import annotations

import ipaddress
import math
from typing import TYPE_CHECKING, TypeVar

from openenv_sandbox.capabilities import Span, isolation_satisfies
from openenv_sandbox.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import Image
    from openenv_sandbox.spec import SandboxSpec

    _Check = Callable[[SandboxSpec, Image, Capabilities, bool], "tuple[str, str, str] | None"]

Number = TypeVar("Number", int, float)


def check(spec: SandboxSpec, image: Image, caps: Capabilities, *, provider: str, serve: bool = True) -> SandboxSpec:
    """The spec with its sizes rounded up, if ``caps`` can honour it.

    Args:
        spec: What is asked for.
        image: Its image, taken apart.
        caps: What the backend can do.
        provider: Its name.
        serve: A server shall be reached in it.

    Raises:
        CapabilityError: Names the field and the backends that could.
    """
    for one in _CHECKS:
        found = one(spec, image, caps, serve)
        if found is not None:
            field, text, hint = found
            others = _alternatives(one, spec, image, serve, provider)
            more = f"{', '.join(others)} can" if others else ""
            raise CapabilityError(
                f"{provider} cannot honour {field}: {text}",
                provider=provider,
                field=field,
                alternatives=others,
                hint="; ".join(part for part in (hint, more) if part) or None,
            )
    return _rounded(spec, caps)


def _alternatives(one: _Check, spec: SandboxSpec, image: Image, serve: bool, provider: str) -> list[str]:
    from openenv_sandbox import registry

    return [
        entry.name
        for entry in registry.entries()
        if entry.cls is not None and entry.name != provider and one(spec, image, entry.cls.capabilities, serve) is None
    ]


def _image(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if image.kind in caps.images:
        return None
    takes = ", ".join(sorted(caps.images)) or "none"
    hint = ""
    if image.kind == "folder" and "ref" in caps.images:
        from openenv_sandbox.pushing import SET_IT

        hint = f"{SET_IT}; or push it yourself and give its ref"
    return "image", f"{image.source or image.name} is a {image.kind}; it takes: {takes}", hint


def _login(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if spec.registry_auth is None or caps.private_images:
        return None
    return "registry_auth", "it takes no login for a registry", "use an image that it may pull"


def _command(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if caps.start == "image" and spec.command is not None:
        return "command", "it runs the image's own command only", "put the command into the image"
    if caps.start == "exec" and caps.exec is None and serve:
        return "command", "it has no way to start a server", ""
    return None


def _ports(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if caps.ports == "none" and (serve or spec.ports):
        return "port", "it gives no way to a port inside", "sandbox() without a server works"
    return None


def _exposure(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if caps.ports == "none":
        return None
    asked = {port.number for port in spec.ports}
    for port in spec.all_ports:
        # Without a server nothing is published that was not asked for; a later `endpoint` is refused by the backend.
        if not serve and port.number not in asked:
            continue
        if port.visibility == "private" and "private" not in caps.exposure:
            field = "exposure" if port.number == spec.port else f"ports[{port.number}].visibility"
            hint = f'{field}="public" accepts that anyone who knows the address reaches the port'
            return field, "it can publish a port only openly", hint
        if port.protocol not in caps.protocols:
            carries = ", ".join(sorted(caps.protocols))
            return f"ports[{port.number}].protocol", f"its ports carry {carries}, not {port.protocol}", ""
    return None


def _isolation(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if isolation_satisfies(caps.isolation, spec.isolation):
        return None
    return "isolation", f"{spec.isolation} is asked for, it offers {caps.isolation}", ""


def _network(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    policy, wanted = spec.network, set[str]()
    if policy.mode != "allowlist":
        wanted.add(policy.mode)
    for host in policy.hosts:
        wanted.add("wildcard" if "*" in host else "hosts")
    for cidr in policy.cidrs:
        wanted.add("cidr4" if ipaddress.ip_network(cidr, strict=False).version == 4 else "cidr6")
    missing = sorted(wanted - set(caps.network))
    if not missing:
        return None
    has = ", ".join(sorted(caps.network)) or "none"
    return "network", f"{policy.mode} needs the policy {' and '.join(missing)}; it has: {has}", ""


def _hardening(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if spec.hardening == "default" or caps.hardening:
        return None
    return "hardening", "it has no stricter profile", ""


def _reload(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if not spec.reload or caps.reload:
        return None
    return "reload", "it runs a copy of the folder, which does not change with it", "launch again after a change"


def _gpus(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    gpu = spec.resources.gpu
    if gpu is None or "*" in caps.gpus or gpu[0].upper() in (model.upper() for model in caps.gpus):
        return None
    return "resources.gpus", f"it offers {', '.join(caps.gpus)}" if caps.gpus else "it offers no GPU", ""


def _sizes(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    for name in ("cpus", "memory_mb", "disk_mb"):
        wanted = getattr(spec.resources, name)
        if wanted is None:
            continue
        if name not in caps.sizes.limits:
            return f"resources.{name}", "it cannot bound it", "leave it out"
        sold: Sequence[float] | Span = getattr(caps.sizes, name)
        most = sold.most if isinstance(sold, Span) else sold[-1] if sold else None
        if most is not None and wanted > most:
            return f"resources.{name}", f"{wanted:g} is more than the largest it sells, {most:g}", ""
    return None


def _user(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    if spec.user is None or caps.user or "user" not in caps.image_parts:
        return None  # what the backend drops, core supplies
    return "user", "it runs the image's user", "set USER in the image"


def _lifetime(spec: SandboxSpec, image: Image, caps: Capabilities, serve: bool) -> tuple[str, str, str] | None:
    wanted, most = spec.timeouts.effective_lifetime, caps.max_lifetime_s
    if most is None or wanted <= most:
        return None
    hint = "shorten timeouts.episode or timeouts.margin"
    return "timeouts.lifetime", f"{wanted:g} s is longer than its longest, {most:g} s", hint


_CHECKS: tuple[_Check, ...] = (
    _image,
    _login,
    _command,
    _ports,
    _exposure,
    _isolation,
    _network,
    _hardening,
    _reload,
    _gpus,
    _sizes,
    _user,
    _lifetime,
)


def _rounded(spec: SandboxSpec, caps: Capabilities) -> SandboxSpec:
    sizes, wanted = caps.sizes, spec.resources
    update = {
        "cpus": _up(wanted.cpus, sizes.cpus),
        "memory_mb": _up(wanted.memory_mb, sizes.memory_mb),
        "disk_mb": _up(wanted.disk_mb, sizes.disk_mb),
    }
    return spec.model_copy(update={"resources": wanted.model_copy(update=update)})


def _up(wanted: Number | None, sold: Sequence[Number] | Span) -> Number | None:
    if wanted is None or not sold:
        return wanted
    if not isinstance(sold, Span):
        return min(size for size in sold if size >= wanted)
    size = max(float(wanted), sold.least)
    if sold.step is not None:
        size = math.ceil(size / sold.step - 1e-9) * sold.step
    size = size if sold.most is None else min(size, sold.most)
    return type(wanted)(math.ceil(size) if isinstance(wanted, int) else size)
