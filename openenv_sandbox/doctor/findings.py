"""The offline examination: no network but this machine's own sockets, and no SDK is imported."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from openenv_sandbox.doctor import installed
from openenv_sandbox.errors import OpenEnvError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.journal import Row

Level = Literal["ok", "note", "warning", "error"]

NEWEST_TESTED = (3, 13)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: What.
        level: ``ok``; ``note`` for what is merely absent; ``warning`` for what may bite; ``error`` for what will.
        text: What was seen.
        remedy: What to do; empty where there is nothing to do.
    """

    subject: str
    level: Level
    text: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything. Takes a few seconds at most, and nothing is changed."""
    found: list[Finding] = []
    for look in (_python, _ourselves, _extras, _engines, _sockets, _state, _configuration, _leftovers):
        try:
            found += look()
        except Exception as error:
            found.append(Finding(look.__name__.strip("_"), "error", f"could not be looked at: {error!r}", "report it"))
    return found


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] > NEWEST_TESTED:
        yield Finding("python", "note", f"{version}, later than what this release was tested on")
    else:
        yield Finding("python", "ok", f"{version} at {sys.executable}")
    system, machine = platform.system(), platform.machine()
    if system == "Linux":
        tested = machine in ("x86_64", "AMD64")
        yield Finding(
            "platform", "ok" if tested else "note", f"{system} {machine}" + ("" if tested else ": not tested")
        )
    elif system == "Darwin":
        text = f"macOS {machine}: clients, clouds and docker; local sandboxes without isolation"
        yield Finding("platform", "note", text)
    else:
        yield Finding("platform", "note", f"{system}: clients and clouds; no local sandboxes", "use WSL for the rest")


def _ourselves() -> Iterator[Finding]:
    from importlib.util import find_spec

    import openenv_sandbox

    home = Path(openenv_sandbox.__file__).resolve().parents[1]
    try:
        version = metadata.version("openenv")
    except metadata.PackageNotFoundError:
        yield Finding("openenv", "error", f"runs from {home} and is not installed", "pip install openenv")
        return
    spec = find_spec("openenv")
    names = Path(spec.origin if spec is not None and spec.origin else "nowhere").resolve().parent
    if not installed.is_ours(names):
        yield Finding(
            "openenv",
            "error",
            f"the import name openenv at {names} belongs to another distribution",
            "pip uninstall openenv-core, then pip install --force-reinstall openenv",
        )
    else:
        yield Finding("openenv", "ok", f"{version} at {home}")
    try:
        old = metadata.version("openenv-core")
    except metadata.PackageNotFoundError:
        return
    yield Finding(
        "openenv-core",
        "error",
        f"{old} is installed beside openenv and overwrites its files",
        "pip uninstall openenv-core, then pip install --force-reinstall openenv",
    )


def _extras() -> Iterator[Finding]:
    yield from (Finding("extras", "warning", text, remedy) for text, remedy in installed.problems())
    there = sorted(installed.complete())
    yield Finding("extras", "ok", f"complete: {', '.join(there)}" if there else "none is installed")


def _engines() -> Iterator[Finding]:
    from openenv_sandbox import _builders, _dockerhost

    try:
        host = _dockerhost.resolve()
        state, reason = _dockerhost.probe(host)
        text = f"answers at {host.url} ({host.source})" if state == "ready" else reason
        remedies = {
            "permission": "add yourself to the group docker, or use the rootless daemon",
            "dead": "start the daemon",
            "missing": "install docker, or set DOCKER_HOST",
        }
        yield Finding("docker", "ok" if state == "ready" else "note", text, remedies.get(state, ""))
    except OpenEnvError as error:
        yield Finding("docker", "warning", error.message, error.hint or "")
    builder = _builders.find_buildkit()
    yield Finding(
        "buildkit",
        "ok" if builder else "note",
        f"{builder.path} ({builder.kind})" if builder else "no docker command can drive it",
        "" if builder else "apt-get install docker-buildx; Dockerfiles with RUN --mount need it",
    )
    for program, use in (
        ("bwrap", "isolation of local sandboxes"),
        ("podman", "containers"),
        ("git", "git+https images"),
    ):
        path = shutil.which(program)
        package = {"bwrap": "bubblewrap"}.get(program, program)
        remedy = "" if path else f"apt-get install {package}"
        yield Finding(program, "ok" if path else "note", path or f"not found: no {use}", remedy)


def _sockets() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError as error:
        yield Finding("loopback", "error", f"this process cannot connect to itself: {error}", "look at the firewall")
    else:
        yield Finding("loopback", "ok", "127.0.0.1 can be listened on and reached")
    proxies = [name for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy") if os.environ.get(name)]
    bypass = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if proxies and "127.0.0.1" not in bypass:
        text = f"{proxies[0]} is set and NO_PROXY does not name 127.0.0.1"
        yield Finding("proxy", "note", text, "export NO_PROXY=localhost,127.0.0.1 where other programs need it")


def _state() -> Iterator[Finding]:
    from openenv_sandbox import _paths

    folder = _paths.state_dir()
    kind = _paths.file_system(folder)
    if kind in _paths.NETWORK_TYPES:
        yield Finding(
            "state", "error", f"{folder} lies on {kind}, where locks cannot be trusted", "set OPENENV_STATE_DIR"
        )
        return
    near = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    writable = os.access(near, os.W_OK | os.X_OK)
    text = f"{folder}" if writable else f"{near} cannot be written, so no journal and no launch"
    yield Finding("state", "ok" if writable else "error", text, "" if writable else "set OPENENV_STATE_DIR")


def _configuration() -> Iterator[Finding]:
    from openenv_sandbox import config

    try:
        settings = config.load()
    except OpenEnvError as error:
        yield Finding("configuration", "error", error.message, error.hint or "openenv config")
        return
    yield Finding("configuration", "ok", f"provider {settings.provider}")
    yield from (Finding("configuration", "warning", text, "openenv config") for text in settings.warnings)


def _leftovers() -> Iterator[Finding]:
    from openenv_sandbox import _paths

    if not _paths.state_dir().is_dir():
        yield Finding("leftovers", "ok", "nothing was ever launched here")
        return
    rows = asyncio.run(_rows())
    dead = [row for row in rows if not row.alive and row.state != "detached"]
    if dead:
        text = f"{len(dead)} sandboxes of processes that are gone"
        yield Finding("leftovers", "warning", text, "openenv gc --dry-run, then openenv gc")
    else:
        yield Finding("leftovers", "ok", f"{len(rows)} sandboxes are in use" if rows else "none")


async def _rows() -> list[Row]:
    from openenv_sandbox.journal import Journal

    journal = await Journal.open()
    try:
        return list(await journal.rows())
    finally:
        await journal.aclose()
