"""An environment folder as one build context for builders that are not a docker daemon's: a folder and a Dockerfile.

The same two steps as in `openenv_sandbox.build`, in one Dockerfile: the author's, with another base where
`OPENENV_BASE_IMAGE` or ``[build] base_image`` says so, and after it the exchange of the openenv inside for the one
that is running. Exactly the files that make up the folder's digest are in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from openenv_sandbox import _context, build, dockerfile
from openenv_sandbox._paths import remove_tree
from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import IO

    from openenv_sandbox.provider import Image

INSTALL_DIR = ".openenv-install"
"""Folder in the context that holds the wheel and the script that installs it."""

_INSIDE = "/tmp/.openenv"


@dataclass(frozen=True)
class Staged:
    """A build context on disk.

    Attributes:
        folder: Its root, a temporary folder.
        dockerfile: The file to build, inside ``folder``.
        digest: Of all that goes into the build, as hex: equal digests build equal images.
    """

    folder: Path
    dockerfile: Path
    digest: str


@contextlib.asynccontextmanager
async def staged(image: Image, *, keep_openenv: bool = False, base_image: str | None = None) -> AsyncIterator[Staged]:
    """Write the context of ``image`` to a temporary folder, which ends with the block.

    Args:
        image: A folder, as `openenv_sandbox.image.parse` made it.
        keep_openenv: Leave whatever openenv its author installed.
        base_image: Replaces the Dockerfile's base; empty for as written, None for what the configuration says.

    Raises:
        BuildError: The wheel of the running openenv cannot be made.
        ImageError: The folder has no Dockerfile, or it cannot be read.
    """
    if image.kind != "folder" or image.path is None:
        raise ImageError(f"{image.source or image.name} is no folder: there is nothing to build")
    if image.dockerfile is None:
        raise ImageError(f"{image.path} has no Dockerfile", hint="put one into the folder")
    root = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="openenv-context-"))
    try:
        yield await asyncio.to_thread(_write, image, root / "context", keep_openenv, base_image)
    finally:
        await asyncio.to_thread(remove_tree, root)


def write_tar(folder: Path, file: IO[bytes], *, gz: bool = False) -> None:
    """Write ``folder`` as an archive that names no user of this machine. Blocks.

    Args:
        folder: What `staged` gave.
        file: Where to.
        gz: Compressed.
    """
    with tarfile.open(fileobj=file, mode="w:gz" if gz else "w") as tar:
        tar.add(folder, arcname=".", filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _write(image: Image, target: Path, keep: bool, base: str | None) -> Staged:
    plan = build._plan(image, build.configured_base() if base is None else base or None, {})
    _context.stage(plan.folder, plan.ignore, target)
    if os.path.lexists(target / INSTALL_DIR):
        raise ImageError(
            f"{image.path} has a file {INSTALL_DIR}, where openenv is added", hint="list it in .dockerignore"
        )
    file = target / plan.name
    if not file.parent.resolve().is_relative_to(target.resolve()):
        raise ImageError(f"{image.path}: {plan.name} lies behind a link that leads out of the folder")
    text, wheel = plan.text, None
    if not keep:
        wheel = build._own_wheel(None)
        folder = target / INSTALL_DIR
        folder.mkdir()
        shutil.copy2(wheel, folder / wheel.name)
        script = resources.files("openenv_sandbox").joinpath("_install_wheel.sh").read_bytes()
        (folder / "install.sh").write_bytes(script)
        text = _with_install(text, image, wheel.name)
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    parts = (build.RECIPE, str(image.digest), text, wheel.parent.name if wheel is not None else "none")
    return Staged(target, file, hashlib.sha256("\n".join(parts).encode()).hexdigest())


def _with_install(text: str, image: Image, wheel: str) -> str:
    config = dockerfile.config(dockerfile.parse(text))
    user = config.user or (image.config.user if image.config is not None else None)
    command = json.dumps(["/bin/sh", f"{_INSIDE}/install.sh", *build.pythons(config)])
    lines = [
        *(["USER root"] if user else []),
        f"COPY {INSTALL_DIR}/install.sh {INSTALL_DIR}/{wheel} {_INSIDE}/",
        f"RUN {command}",
        *([f"USER {user}"] if user else []),
    ]
    return "\n".join([text.rstrip("\n"), *lines, ""])
