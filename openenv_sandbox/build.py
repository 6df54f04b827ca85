"""From an environment folder to an image on a docker daemon, with the running openenv inside.

Two steps. The first builds the author's Dockerfile as it is (with another base where `OPENENV_BASE_IMAGE` or
``[build] base_image`` says so) from exactly the files that make up the folder's digest. The second stands on the
result, removes ``openenv-core`` (an older distribution with the same import names) and installs our own wheel by
path, into the Python that the image's command uses. The author's files stay untouched, and no secret is ever part of a
build: neither as argument nor in a layer.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import tarfile
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _builders, _context, dockerfile, wheel
from openenv_sandbox.errors import BuildError, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import BinaryIO

    from openenv_sandbox._builders import BuildKit
    from openenv_sandbox._dockerhost import DockerHost
    from openenv_sandbox._engine import Engine
    from openenv_sandbox.provider import Image, ImageConfig, LogSink

LABEL = "openenv.built"
"""Label of every image made here; its value is the environment's name."""
RECIPE = "1"
"""Changes whenever the way of building does, so that older results are not taken for ours."""
_BUILDKIT_HINT = (
    "install the BuildKit plugin of the docker CLI: apt-get install docker-buildx-plugin (Docker's own packages) or "
    "docker-buildx (Debian, Ubuntu); the docker CLI 20.10 of Debian 12 (docker.io) has it built in"
)
_OFFLINE = re.compile(r"no such host|i/o timeout|failed to do request|network is unreachable", re.IGNORECASE)
_WHEEL_DIR = "/tmp/.openenv"


@dataclass(frozen=True)
class Built:
    """An image on the daemon: the name it has there, its id, and how it wants to be started."""

    tag: str
    id: str
    config: ImageConfig


async def build_folder(
    image: Image,
    *,
    host: DockerHost,
    on_log: LogSink,
    keep_openenv: bool = False,
    base_image: str | None = None,
    build_args: Mapping[str, str] | None = None,
    force: bool = False,
    cache_dir: Path | None = None,
    labels: Mapping[str, str] | None = None,
) -> Built:
    """Build an environment folder, unless the daemon holds the result already.

    Args:
        image: A folder, as `openenv_sandbox.image.parse` made it.
        host: The daemon.
        on_log: Receives every line of output, on the event loop.
        keep_openenv: Leave out the second step: the image keeps whatever openenv its author installed.
        base_image: Replaces every outside base; None for what the configuration says.
        build_args: Values for the Dockerfile's ARGs. They are readable in the image: never secrets.
        force: Build even when the result is there, without the builder's cache.
        cache_dir: Where the wheel is kept; None for the user's state folder.
        labels: Of the image; one that stands already keeps those of whoever built it.

    Raises:
        BuildError: With the end of the log; or the Dockerfile needs BuildKit and there is none.
        ImageError: The folder has no Dockerfile, or it cannot be read.
        ProviderUnavailable: The daemon cannot be reached.
    """
    from openenv_sandbox._engine import Engine, EngineError

    if image.kind != "folder" or image.path is None:
        raise ImageError(f"{image.source or image.name} is no folder: there is nothing to build")
    if image.dockerfile is None:
        raise ImageError(
            f"{image.path} has no Dockerfile", hint="put one into the folder, or run it with provider='local'"
        )
    base = base_image if base_image is not None else await asyncio.to_thread(configured_base)
    plan = await asyncio.to_thread(_plan, image, base, dict(build_args or {}))
    async with Engine(host) as engine:
        try:
            standing = (await engine.inspect(base) or {}).get("Id", base) if base else ""
            wheel_path = None if keep_openenv else await asyncio.to_thread(_own_wheel, cache_dir)
            wheel_id = wheel_path.parent.name if wheel_path is not None else "none"
            parts = (RECIPE, str(image.digest), standing, wheel_id, repr(sorted(plan.build_args.items())))
            digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
            tag = f"openenv/{_slug(image.name)}:{digest}"
            found = None if force else await engine.inspect(tag)
            if found is not None:
                on_log(f"{tag} is there already")
                return _built(tag, found)
            marks = {LABEL: image.name, **(labels or {})}
            return await _build(engine, host, plan, tag, wheel_path, on_log, force, marks)
        except EngineError as error:
            raise BuildError(f"the docker daemon refused: {error}", provider="docker") from error


async def tag(built: Built, names: Iterable[str], *, host: DockerHost) -> None:
    """Give the result further names.

    Raises:
        BuildError: The daemon refuses one.
        ProviderUnavailable: The daemon cannot be reached.
    """
    from openenv_sandbox._engine import Engine, EngineError

    async with Engine(host) as engine:
        for name in names:
            try:
                await engine.tag(built.tag, name)
            except EngineError as error:
                raise BuildError(f"{name!r} is no name for an image: {error}", provider="docker") from error


@dataclass(frozen=True)
class _Plan:
    image: Image
    folder: Path
    name: str
    text: str
    needs_buildkit: str | None
    build_args: dict[str, str]
    ignore: _context.Ignore
    bases: tuple[str, ...]


def configured_base() -> str | None:
    """``OPENENV_BASE_IMAGE``, else ``[build] base_image`` of the configuration, else None."""
    from openenv_sandbox import config

    return os.environ.get("OPENENV_BASE_IMAGE") or config.load().base_image


def _own_wheel(cache_dir: Path | None) -> Path:
    from openenv_sandbox import _paths

    return wheel.own_wheel(cache_dir or _paths.state_dir() / "wheels")


def _plan(image: Image, base: str | None, build_args: dict[str, str]) -> _Plan:
    from openenv_sandbox.image import read_dockerfile

    folder, file = Path(str(image.path)), Path(str(image.dockerfile))
    parsed = read_dockerfile(file, build_args=build_args)
    text = dockerfile.with_base(parsed, base) if base else parsed.text
    if base:
        # The stock `syntax` line makes BuildKit ask a registry for its own front end: offline that fails.
        text = re.sub(r"\A(#\s*syntax\s*=\s*(docker\.io/)?docker/dockerfile\S*)", r"# was \1", text)
    name = file.relative_to(folder).as_posix()
    ignore = _context.Ignore.of(folder, file)
    bases = (base,) if base else parsed.bases()
    return _Plan(image, folder, name, text, parsed.needs_buildkit, build_args, ignore, bases)


async def _build(
    engine: Engine,
    host: DockerHost,
    plan: _Plan,
    tag: str,
    wheel_path: Path | None,
    on_log: LogSink,
    force: bool,
    labels: Mapping[str, str],
) -> Built:
    buildkit = await asyncio.to_thread(_builders.find_buildkit)
    if buildkit is None and plan.needs_buildkit is not None:
        raise BuildError(
            f"{plan.folder / plan.name} needs BuildKit ({plan.needs_buildkit}) and no docker command here has it",
            hint=_BUILDKIT_HINT,
        )
    first = tag if wheel_path is None else f"{tag}-author"
    pack = partial(_pack_folder, plan)
    job = partial(_run, engine, host, buildkit, on_log=on_log)
    on_log(f"building {plan.folder} by {buildkit.kind if buildkit else 'the classic builder'}")
    try:
        await job(pack, plan.name, first, labels, plan.build_args, force, plan.bases)
    except BuildError as error:
        if error.hint is None and _OFFLINE.search(error.log or error.message):
            error.hint = "without a registry: OPENENV_BASE_IMAGE names a base image that the daemon already has"
        raise
    if wheel_path is not None:
        author = await engine.inspect(first)
        if author is None:
            raise BuildError(f"{first} is gone after it was built", provider="docker")
        config = _config(author)
        on_log(f"installing {wheel_path.name} into {first}")
        try:
            await job(partial(_pack_wheel, first, config, wheel_path), "Dockerfile", tag, labels, {}, force)
        except BuildError as error:
            error.message += " (while installing the running openenv into the image)"
            error.hint = error.hint or "keep_openenv=True leaves the image as its author built it"
            raise
        await engine.untag(first)
    found = await engine.inspect(tag)
    if found is None:
        raise BuildError(f"the builder said success, but the daemon has no {tag}", provider="docker")
    return _built(tag, found)


async def _run(
    engine: Engine,
    host: DockerHost,
    buildkit: BuildKit | None,
    pack: Any,
    name: str,
    tag: str,
    labels: Mapping[str, str],
    build_args: Mapping[str, str],
    force: bool,
    bases: tuple[str, ...] = (),
    *,
    on_log: LogSink,
) -> None:
    context: BinaryIO = await asyncio.to_thread(pack)
    try:
        job = _builders.Job(context, name, tag, labels, build_args, no_cache=force, bases=bases)
        if buildkit is not None:
            await _builders.by_cli(buildkit, job, host, on_log)
        else:
            await _builders.by_engine(engine, job, on_log)
    finally:
        context.close()


def _pack_folder(plan: _Plan) -> BinaryIO:
    """A tar of the context; the Dockerfile is in it whatever ``.dockerignore`` says, with its base replaced."""
    file = tempfile.TemporaryFile(prefix="openenv-context-")
    with _tar(file) as tar:
        _add(tar, plan.name, plan.text.encode())
        for relative, path in _context.walk(plan.folder, plan.ignore):
            if relative != plan.name:
                tar.add(path, arcname=relative, recursive=False, filter=_anonymous)
    file.seek(0)
    return file


def _pack_wheel(first: str, config: ImageConfig, wheel_path: Path) -> BinaryIO:
    """The second step's context: the wheel, the script that installs it, and three lines of Dockerfile."""
    lines = [f"FROM {first}", *(["USER root"] if config.user else []), f"COPY *.whl install.sh {_WHEEL_DIR}/"]
    command = ", ".join(f'"{word}"' for word in ("/bin/sh", f"{_WHEEL_DIR}/install.sh", *pythons(config)))
    lines.append(f"RUN [{command}]")
    if config.user:
        lines.append(f"USER {config.user}")
    file = tempfile.TemporaryFile(prefix="openenv-wheel-")
    script = resources.files("openenv_sandbox").joinpath("_install_wheel.sh").read_bytes()
    with _tar(file) as tar:
        _add(tar, "Dockerfile", ("\n".join(lines) + "\n").encode())
        _add(tar, "install.sh", script)
        _add(tar, wheel_path.name, wheel_path.read_bytes())
    file.seek(0)
    return file


def pythons(config: ImageConfig) -> list[str]:
    """Interpreters that the image's command names or implies, best first; the script falls back to PATH."""
    words = " ".join(config.argv)
    found = []
    for folder, program in re.findall(r"(?<![\w.])((?:/[\w.@+-]+)*/bin)/([\w.-]+)", words):
        if program.startswith("python"):
            found.append(f"{folder}/{program}")
        elif program not in ("sh", "bash", "env", "tini", "uv", "dumb-init"):
            found.append(f"{folder}/python")
    if re.search(r"\buv run\b", words):
        folders = [
            *re.findall(r"\bcd (/[\w./-]+)", words),
            *re.findall(r"--(?:project|directory)[ =](/[\w./-]+)", words),
        ]
        found += [f"{folder}/.venv/bin/python" for folder in (*folders, config.workdir or "/app")]
    return list(dict.fromkeys(found))


def _tar(file: Any) -> tarfile.TarFile:
    """For writing. In the GNU form and with a short first name the docker CLI recognises it by its first block."""
    return tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "env"


def _config(inspected: Mapping[str, Any]) -> ImageConfig:
    from openenv_sandbox._remote_config import from_oci

    return from_oci(inspected.get("Config") or {})


def _built(tag: str, inspected: Mapping[str, Any]) -> Built:
    return Built(tag=tag, id=str(inspected["Id"]), config=_config(inspected))
