"""An environment folder as a vendor's builder takes it: one Dockerfile and the files that it copies.

The author's Dockerfile (with another base where that is configured), and behind it the steps that put the running
openenv into the image, as `openenv_sandbox.build` does on a docker daemon in two builds. Vendors build once, so both
are one file here. No secret is part of it.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from openenv_sandbox import _context, build
from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import ImageConfig

if TYPE_CHECKING:
    from typing import BinaryIO

    from openenv_sandbox.provider import Image

_INSIDE = ".openenv-install"
"""Folder of the context that holds what we add."""


@dataclass(frozen=True)
class RemoteBuild:
    """What is handed to a builder.

    Attributes:
        dockerfile: The text.
        digest: Of everything that decides the result, 64 hexadecimal digits.
        config: How the image wants to be started, as far as the Dockerfile says.
        files: Names in the context and where their contents are, the Dockerfile not among them.
    """

    dockerfile: str
    digest: str
    config: ImageConfig
    files: tuple[tuple[str, Path], ...]

    def pack(self, *, dockerfile: str | None = None) -> BinaryIO:
        """The context as a tar in a temporary file, with the Dockerfile under the name given, if one is. Blocks."""
        file = tempfile.TemporaryFile(prefix="openenv-context-")
        with build._tar(file) as tar:
            if dockerfile is not None:
                build._add(tar, dockerfile, self.dockerfile.encode())
            for name, path in self.files:
                tar.add(path, arcname=name, recursive=False, filter=build._anonymous)
        file.seek(0)
        return file

    def stage(self, target: Path, *, dockerfile: str | None = None) -> None:
        """The same as a folder. Blocks."""
        import shutil

        target.mkdir(parents=True, exist_ok=True)
        for name, path in self.files:
            destination = target / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, destination, follow_symlinks=False)
        if dockerfile is not None:
            (target / dockerfile).write_text(self.dockerfile, encoding="utf-8")


def plan(image: Image, *, keep_openenv: bool = False, base_image: str | None = None, tail: str = "") -> RemoteBuild:
    """Put together what a vendor's builder needs. Blocks: call it in a thread.

    Args:
        image: A folder, as `openenv_sandbox.image.parse` made it.
        keep_openenv: Leave the image as its author wrote it.
        base_image: Replaces every outside base; None for what the configuration says.
        tail: Lines that end the Dockerfile.

    Raises:
        ImageError: The folder has no Dockerfile, or it cannot be read.
    """
    if image.kind != "folder" or image.path is None:
        raise ImageError(f"{image.source or image.name} is no folder: there is nothing to build")
    if image.dockerfile is None:
        raise ImageError(
            f"{image.path} has no Dockerfile", hint="put one into the folder, or run it with provider='local'"
        )
    base = base_image if base_image is not None else build.configured_base()
    made = build._plan(image, base, {})
    files = [(name, path) for name, path in _context.walk(made.folder, made.ignore) if name != made.name]
    config = image.config or ImageConfig()
    text, added = made.text.rstrip("\n") + "\n", ""
    if not keep_openenv:
        wheel, script = build._own_wheel(None), Path(str(resources.files("openenv_sandbox"))) / "_install_wheel.sh"
        files += [(f"{_INSIDE}/{wheel.name}", wheel), (f"{_INSIDE}/install.sh", script)]
        text += _install(config)
        added = wheel.parent.name
    text += tail
    parts = (build.RECIPE, str(image.digest), added, text)
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return RemoteBuild(text, digest, config, tuple(files))


def slug(name: str) -> str:
    """``name`` as part of a vendor's name: lower-case letters, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "env"


def _install(config: ImageConfig) -> str:
    command = ", ".join(f'"{word}"' for word in ("/bin/sh", f"{build._WHEEL_DIR}/install.sh", *build.pythons(config)))
    lines = [*(["USER root"] if config.user else []), f"COPY {_INSIDE}/ {build._WHEEL_DIR}/", f"RUN [{command}]"]
    return "\n".join([*lines, *([f"USER {config.user}"] if config.user else [])]) + "\n"
