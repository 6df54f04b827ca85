"""Disk images: what a registry's image, a template or a snapshot is booted from."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from typing import TYPE_CHECKING, Protocol

from openenv_providers._aca_errors import NAME, disk_error, ours
from openenv_sandbox.errors import ImageError, OpenEnvError
from openenv_sandbox.provider import Image, ImageConfig, Prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openenv_providers._aca_preview import Preview
    from openenv_providers._aca_values import Disk
    from openenv_sandbox.provider import LogSink
    from openenv_sandbox.spec import SandboxSpec

PUBLIC = "public:"
_OURS = re.compile(r"oe-(?P<install>[A-Za-z0-9]+)-(?P<what>\S+)-(?P<at>[0-9]+)\Z")
_OF = "of."
_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0)


class Pulling(Protocol):
    """What the options say about private registries."""

    pull_identity: str | None
    pull_registry: str | None


def new_name(install: str | None, what: str) -> str:
    """A name that says whose it is, what it is made of and when."""
    return f"oe-{install or 'none'}-{what}-{int(time.time())}"


async def from_ref(api: Preview, image: Image, spec: SandboxSpec, options: Pulling, on_log: LogSink) -> Prepared:
    """The disk image of a registry's image: what is there by that content, or a new one.

    Raises:
        ImageError: There is no such image, or it may not be pulled.
        BuildError: Making it failed.
    """
    install = spec.labels.get("oe-install")
    content = hashlib.sha256((image.digest or image.name).encode()).hexdigest()[:16]
    disk = None if spec.pull == "always" else _newest(await _all(api), install or "none", content)
    what = f"making a disk image of {image.name}"
    if disk is None:
        on_log(what)
        making = api.make_disk(image.name, new_name(install, content), spec.registry_auth, _identity(image, options))
        disk = await ours(making, what, acts=True)
    disk = await ready(api, disk, what, on_log)
    return _prepared(disk, image.config, image.digest)


async def given(api: Preview, image: Image) -> Prepared:
    """A template, one of the service's own or a private one by id or name, or a snapshot.

    Raises:
        ImageError: There is none.
    """
    what, name = f"looking for {image.source}", image.name
    if image.kind == "template":
        with contextlib.suppress(ImageError):
            found = await ours(api.public_disk(name.removeprefix(PUBLIC)), what, gone=ImageError)
            return Prepared(f"{PUBLIC}{found.name or name}", image=await _config(api, found))
    try:
        disk = await ours(api.disk(name), what, gone=ImageError)
    except ImageError:
        named = [disk for disk in await _all(api) if disk.name == name]
        if not named:
            hint = "template: takes a public or private disk image, snapshot: what snapshot() gave"
            raise ImageError(f"there is no disk image {name!r}", provider=NAME, hint=hint) from None
        disk = named[-1]
    disk = await ready(api, disk, what, lambda line: None)
    return Prepared(disk.id, image=await _config(api, disk))


async def ready(api: Preview, disk: Disk, what: str, on_log: LogSink) -> Disk:
    """Wait until it can be booted.

    Raises:
        ImageError, BuildError: It cannot; what the service said is in the message.
    """
    turn = 0
    while disk.ready is None:
        await asyncio.sleep(_WAITS[min(turn, len(_WAITS) - 1)])
        turn += 1
        if turn % 5 == 0:
            on_log(f"{what}: {disk.message or 'at work'}")
        disk = await ours(api.disk(disk.id), what, gone=ImageError)
    if not disk.ready:
        if _OURS.match(disk.name):
            with contextlib.suppress(OpenEnvError):
                await ours(api.drop_disk(disk.id), "removing what failed", gone=ImageError)
        raise disk_error(f"{what} failed: {disk.message or 'no reason given'}", disk.message)
    return disk


async def kept(api: Preview) -> Sequence[Prepared]:
    """Those that were made here, by whichever install."""
    return [_prepared(disk, None, None) for disk in await _all(api) if _OURS.match(disk.name)]


async def drop(api: Preview, id: str) -> None:
    """Remove one; what is not there is removed."""
    if not id.startswith(PUBLIC):
        with contextlib.suppress(ImageError):
            await ours(api.drop_disk(id), f"removing disk image {id}", gone=ImageError, acts=True)


def made_from(disk: str | None) -> str:
    """The part of a snapshot's name that leads back to what its sandbox was made of."""
    return f"{_OF}{disk}" if disk and re.fullmatch(r"[A-Za-z0-9._-]+", disk) else "snapshot"


async def _all(api: Preview) -> list[Disk]:
    return await ours(api.disks(), "listing disk images")


def _newest(disks: Sequence[Disk], install: str, content: str) -> Disk | None:
    named = [(found, disk) for disk in disks if (found := _OURS.match(disk.name)) and disk.ready is not False]
    fitting = [(int(f["at"]), d.id, d) for f, d in named if (f["install"], f["what"]) == (install, content)]
    return max(fitting)[2] if fitting else None


def _prepared(disk: Disk, config: ImageConfig | None, digest: str | None) -> Prepared:
    found = _OURS.match(disk.name)
    labels = {"oe-install": found["install"]} if found else {}
    return Prepared(disk.id, config, digest, True, labels, float(found["at"]) if found else None)


def _identity(image: Image, options: Pulling) -> str | None:
    """The identity, for its own registry alone: whoever names the image must not choose who sees it."""
    from openenv_sandbox._remote_config import split

    return options.pull_identity if split(image.name)[0] == options.pull_registry else None


async def _config(api: Preview, disk: Disk, depth: int = 8) -> ImageConfig | None:
    """How a disk wants to be started: what its own image says, under what was said when it was made."""
    found = _OURS.match(disk.name)
    if not disk.base and found and found["what"].startswith(_OF) and depth:
        with contextlib.suppress(OpenEnvError):
            source = await ours(api.disk(found["what"].removeprefix(_OF)), "looking for its source", gone=ImageError)
            return await _config(api, source, depth - 1)
    config = await _config_of(disk.base) if disk.base else None
    if not disk.entrypoint and not disk.cmd:
        return config
    base = config or ImageConfig()
    return ImageConfig(disk.entrypoint, disk.cmd, base.env, base.user, base.workdir, base.ports)


async def _config_of(ref: str) -> ImageConfig | None:
    """Core knows no image behind a template or a snapshot; the service does."""
    from openenv_sandbox.image import resolve_config

    try:
        return await resolve_config(Image("ref", ref, source=ref))
    except ImageError:
        return None  # core says what is missing, where it is needed
