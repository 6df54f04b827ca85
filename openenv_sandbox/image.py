"""What an image string means, and how the image wants to be started.

The grammar, everywhere the same and without guessing:

    ./envs/echo_env  /abs/folder  ~/folder    a folder with openenv.yaml and Dockerfile
    ghcr.io/me/env:1                          a registry ref
    template:ID   snapshot:ID                 something the backend already holds
    hf://org/space   git+https://…            a folder elsewhere

Reading a folder touches files: call `parse` and `for_client` from a worker thread when on an event loop.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from openenv_sandbox import _context, _manifest, dockerfile, fetching
from openenv_sandbox._manifest import Manifest
from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import Image, ImageConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from openenv_sandbox.spec import RegistryAuth

__all__ = ["Image", "ImageConfig", "Manifest", "for_client", "manifest", "parse", "resolve_config"]

_log = logging.getLogger("openenv.launch")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?|\[[0-9a-fA-F:]+\](?::[0-9]+)?)"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REF = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?\Z")
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_ID = re.compile(r"[^\s:]\S*\Z")
_SCHEMES = ("template:", "snapshot:", *fetching.SCHEMES)
_FOLDER_HINT = "a folder is written with a leading ./ or / and holds openenv.yaml and a Dockerfile"


def parse(text: str | os.PathLike[str], *, trust: bool = False) -> Image:
    """Take an image string apart; a path object always means a folder.

    For a folder its openenv.yaml and Dockerfile are read and its files hashed; one elsewhere is fetched first.

    Args:
        text: The image.
        trust: The user vouches for code that lies elsewhere.

    Raises:
        ImageError: The string fits no form (the hint names the nearest), or the folder is not an environment.
        TrustError: The code lies elsewhere, and nobody vouches for it.
        MissingExtraError, ProviderUnavailable: It cannot be fetched.
    """
    if isinstance(text, os.PathLike):
        return _folder(Path(os.fspath(text)), os.fspath(text))
    if not isinstance(text, str) or not text.strip():
        raise ImageError(f"an image is a text or a path, not {text!r}", hint=_FOLDER_HINT)
    if text != text.strip() or any(char.isspace() and char != " " for char in text):
        raise ImageError(f"the image {text!r} begins or ends with white space", hint=f"write {text.strip()!r}")
    for kind in ("template", "snapshot"):
        if text.startswith(f"{kind}:"):
            name = text[len(kind) + 1 :]
            if not _ID.match(name):
                raise ImageError(f"{text!r} has no id after {kind}:", hint=f"write {kind}:ID")
            return Image(kind=kind, name=name, source=text)
    if text.startswith(fetching.SCHEMES):
        folder, pinned = fetching.fetch(text, trust=trust)
        return _folder(folder, pinned)
    if _is_path(text):
        return _folder(Path(text).expanduser(), text)
    if _IMAGE_ID.match(text):
        return Image(kind="ref", name=text, source=text, digest=text)
    _refuse_near_misses(text)
    if not _REF.match(text):
        raise ImageError(f"{text!r} is no image", hint=_nearest(text))
    digest = text.partition("@")[2] or None
    return Image(kind="ref", name=text, source=text, digest=digest)


def manifest(path: str | os.PathLike[str]) -> Manifest:
    """The openenv.yaml of a folder.

    Raises:
        ImageError: It is missing or malformed.
    """
    return _manifest.load(Path(path))


def for_client(cls: type) -> Image:
    """The environment that a client class belongs to: the folder of its package's openenv.yaml.

    The package's own folder is looked at first, then what lies above it in a checkout (``envs/echo_env``,
    ``src`` layouts); an installed package carries the file as package data.

    Raises:
        ImageError: There is none; the hint names ``image=``.
    """
    module = sys.modules.get(cls.__module__)
    source = getattr(module, "__file__", None)
    if source is None:
        try:
            source = inspect.getfile(cls)
        except (TypeError, OSError):
            source = None
    hint = f'say which one: {cls.__name__}.launch("./envs/…") or {cls.__name__}.launch("ghcr.io/…")'
    if source is None or cls.__module__.split(".")[0] in ("openenv_sandbox", "openenv", "openenv_core"):
        raise ImageError(f"{cls.__name__} belongs to no environment package", hint=hint)
    folder = Path(source).resolve().parent
    depth = cls.__module__.count(".") + 2
    for candidate in (folder, *list(folder.parents)[:depth]):
        if (candidate / _manifest.FILE).is_file():
            return _folder(candidate, str(candidate))
        if candidate.name in ("site-packages", "dist-packages"):
            break
    raise ImageError(f"the package of {cls.__name__} ({cls.__module__}) has no openenv.yaml", hint=hint)


async def resolve_config(
    image: Image, *, timeout: float = 20.0, base: bool = False, auth: RegistryAuth | None = None
) -> ImageConfig | None:
    """How ``image`` wants to be started: what it carries, else the local daemon, else its registry.

    Args:
        image: As `parse` made it.
        timeout: For all look-ups together, in seconds.
        auth: Login of the registry, where it asks for one; None for what is configured.
        base: For a folder, add what the image below its Dockerfile brings, where that can be found out.

    Returns:
        None for templates and snapshots: only the backend knows.

    Raises:
        ImageError: Nobody could be asked, or the folder says nothing; the hint names ``command=``.
    """
    if base and image.dockerfile is not None:
        image = replace(image, config=await _on_its_base(image, image.dockerfile, timeout, auth))
    if image.config is not None and (image.config.argv or image.kind != "folder"):
        return image.config
    if image.kind in ("template", "snapshot"):
        return None
    hint = "say what to run: command=['python', '-m', '…']"
    if image.kind == "folder":
        raise ImageError(
            f"{image.path}: neither a Dockerfile CMD nor an app in openenv.yaml says what to start", hint=hint
        )
    from openenv_sandbox import _remote_config

    return await _remote_config.resolve(image.name, timeout=timeout, hint=hint, auth=auth)


# ----------------------------------------------------------------------------------------------------- folders


async def _on_its_base(image: Image, path: str, timeout: float, auth: RegistryAuth | None) -> ImageConfig | None:
    from openenv_sandbox import _remote_config
    from openenv_sandbox.build import configured_base

    parsed = await asyncio.to_thread(read_dockerfile, Path(path))
    below = dockerfile.outside_base(parsed)
    if below is None:
        return image.config
    below = await asyncio.to_thread(configured_base) or below
    try:
        found = await _remote_config.resolve(below, timeout=timeout, hint="", auth=auth)
    except ImageError as error:
        _log.warning("%s: what its base brings is not known here: %s", image.name, error.message)
        return image.config
    config = dockerfile.config(parsed, base=found)
    own = image.config
    if own is not None and own.argv and not dockerfile.config(parsed).argv:
        # openenv.yaml names the app: it is not the base's command that is meant.
        config = replace(config, entrypoint=own.entrypoint, cmd=own.cmd)
    return config


def _folder(path: Path, source: str) -> Image:
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ImageError(f"the folder {source} {what}", hint=_sibling(path))
    path = path.resolve()
    described = _manifest.load(path)
    file = find_dockerfile(path)
    ignore = _context.Ignore.of(path, file)
    config = ImageConfig(ports=(described.port,))
    if file is not None:
        parsed = read_dockerfile(file)
        config = dockerfile.config(parsed)
    if not config.argv and described.app is not None:
        command = ("python", "-m", "uvicorn", described.app, "--host", "0.0.0.0", "--port", str(described.port))
        config = ImageConfig((), command, config.env, config.user, config.workdir, config.ports or (described.port,))
    return Image(
        kind="folder",
        name=described.name,
        path=str(path),
        dockerfile=str(file) if file is not None else None,
        config=config,
        digest=_context.digest(path, ignore, file),
        source=source,
    )


def find_dockerfile(folder: Path) -> Path | None:
    """``Dockerfile``, else ``server/Dockerfile``."""
    return next((path for path in (folder / "Dockerfile", folder / "server" / "Dockerfile") if path.is_file()), None)


def read_dockerfile(path: Path, *, build_args: dict[str, str] | None = None) -> dockerfile.Dockerfile:
    """A Dockerfile, with the file's name in every error.

    Raises:
        ImageError: It cannot be read.
    """
    try:
        return dockerfile.parse(path.read_text(encoding="utf-8"), build_args=build_args)
    except ImageError as error:
        raise ImageError(f"{path}: {error.message}", hint=error.hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(f"{path} cannot be read: {error}") from error


# -------------------------------------------------------------------------------------------------- near misses


def _is_path(text: str) -> bool:
    return text in (".", "..", "~") or text.startswith(("./", "../", "~/", ".\\", "..\\")) or Path(text).is_absolute()


def _refuse_near_misses(text: str) -> None:
    """Strings that are syntactically a ref and most likely meant as something else."""
    prefix, colon, rest = text.partition(":")
    if colon and prefix not in ("template", "snapshot") and "/" not in prefix:
        close = difflib.get_close_matches(prefix + ":", ("template:", "snapshot:"), n=1, cutoff=0.75)
        if close:
            raise ImageError(f"{text!r} is neither a ref nor a template", hint=f"did you mean {close[0]}{rest}?")
    if Path(text, _manifest.FILE).is_file() or ("/" in text and Path(text, "Dockerfile").is_file()):
        raise ImageError(
            f"{text!r} could be the folder {text} or a registry ref",
            hint=f"write ./{text} for the folder, or the ref in full: docker.io/{text}",
        )


def _nearest(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if separator:
        fit = {"http": "git+https", "https": "git+https", "git": "git+https", "huggingface": "hf"}.get(scheme.lower())
        if fit is not None:
            return f"did you mean {fit}://{rest}?"
        if scheme.lower() in ("docker", "oci", "docker-daemon"):
            return f"write a registry ref without a scheme: {rest}"
        close = difflib.get_close_matches(f"{scheme}://", _SCHEMES, n=1, cutoff=0.5)
        return f"did you mean {close[0]}{rest}?" if close else f"schemes are {', '.join(_SCHEMES)}"
    if Path(text).is_dir():
        return f"write ./{text} for the folder"
    if _REF.match(text.lower()):
        return f"registry names are lower case: did you mean {text.lower()}?"
    siblings = _similar(Path(text))
    return f"did you mean ./{siblings[0]}?" if siblings else _FOLDER_HINT


def _sibling(path: Path) -> str:
    close = _similar(path)
    return f"did you mean {close[0]}?" if close else _FOLDER_HINT


def _similar(path: Path) -> list[str]:
    try:
        names: Iterable[str] = [entry.name for entry in os.scandir(path.parent) if entry.is_dir()]
    except OSError:
        return []
    return [str(path.parent / name) for name in difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)]
