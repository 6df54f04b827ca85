"""The two ways a folder becomes an image: the docker CLI's BuildKit, and the daemon's classic builder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openenv_sandbox import _dockerssh
from openenv_sandbox.errors import BuildError
from openenv_sandbox.lifecycle import daemon_call, finish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from openenv_sandbox._dockerhost import DockerHost
    from openenv_sandbox._engine import Engine
    from openenv_sandbox.provider import LogSink

TAIL_LINES = 60
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NOISE = re.compile(r"#\d+ sha256:[0-9a-f]{64}\Z")  # BuildKit 20.10 names every step by its digest too
_lock = threading.Lock()
_seen: dict[tuple[str, int], BuildKit | None] = {}


@dataclass(frozen=True)
class BuildKit:
    """A docker CLI that can drive BuildKit: by its ``buildx`` plugin, or built in (20.10)."""

    path: str
    kind: Literal["buildx", "builtin"]


@dataclass(frozen=True)
class Job:
    """One build: an open tar of the context, the Dockerfile's name in it, the name of the result, what it stands on."""

    context: BinaryIO
    dockerfile: str
    tag: str
    labels: Mapping[str, str]
    build_args: Mapping[str, str]
    no_cache: bool = False
    bases: tuple[str, ...] = ()


def find_buildkit() -> BuildKit | None:
    """The first docker CLI on PATH that can drive BuildKit. Runs it: call from a worker thread."""
    done: set[str] = set()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.realpath(os.path.join(folder, "docker"))
        if path in done or not os.access(path, os.X_OK):
            continue
        done.add(path)
        key = (path, os.stat(path).st_mtime_ns)
        with _lock:
            known = _seen[key] if key in _seen else _UNKNOWN
        found = _examine(path) if isinstance(known, _Unknown) else known
        with _lock:
            _seen[key] = found
        if found is not None:
            return found
    return None


class _Unknown:
    pass


_UNKNOWN = _Unknown()


def _examine(path: str) -> BuildKit | None:
    code, text = _output(path, "buildx", "version")
    if code == 0 and "buildx" in text:
        return BuildKit(path, "buildx")
    # Prints the client's version even where no daemon answers, with an exit code that is not 0.
    _, text = _output(path, "version", "--format", "{{.Client.Version}}")
    match = re.match(r"(\d+)\.", text)
    if match is not None and 18 <= int(match[1]) < 23:
        return BuildKit(path, "builtin")
    return None


def _output(*argv: str) -> tuple[int, str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 1, ""
    return done.returncode, done.stdout.strip()


async def by_cli(buildkit: BuildKit, job: Job, host: DockerHost, on_log: LogSink) -> None:
    """Build with BuildKit. Cancelling kills the builder and waits until it is gone.

    Raises:
        BuildError: With the end of its output.
    """
    verb = ("buildx", "build", "--load") if buildkit.kind == "buildx" else ("build",)
    argv = [buildkit.path, *verb, "--progress", "plain", "-f", job.dockerfile, "-t", job.tag]
    argv += [word for name, value in job.labels.items() for word in ("--label", f"{name}={value}")]
    argv += [word for name, value in job.build_args.items() for word in ("--build-arg", f"{name}={value}")]
    argv += ["--no-cache"] if job.no_cache else []
    host = await daemon_call(_dockerssh.reached, host)
    env = {name: value for name, value in os.environ.items() if name not in ("DOCKER_CONTEXT", "DOCKER_TLS")}
    env.update(DOCKER_BUILDKIT="1", DOCKER_HOST=host.url, NO_COLOR="1")
    if host.tls is not None:
        env.update(DOCKER_CERT_PATH=host.tls, DOCKER_TLS_VERIFY="1" if host.verify else "")
    process = await asyncio.create_subprocess_exec(
        *argv,
        "-",
        stdin=job.context,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        start_new_session=True,
        limit=1 << 20,
    )
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line longer than the buffer: it was dropped
                continue
            if not line:
                break
            _tell(line.decode("utf-8", "replace"), tail, on_log)
        code = await process.wait()
    finally:
        if process.returncode is None:
            await finish(_end(process), timeout=10.0)
    if code != 0:
        raise BuildError(f"docker build failed with exit code {code}: {_reason(tail)}", log="\n".join(tail))


async def _end(process: asyncio.subprocess.Process) -> None:
    """The client's end cancels the build; its whole group, since buildx runs as a child of docker."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 3.0)
        except (TimeoutError, asyncio.TimeoutError):
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    await process.wait()


async def by_engine(engine: Engine, job: Job, on_log: LogSink) -> None:
    """Build with the daemon's classic builder. Cancelling cuts the connection, which ends the build.

    Raises:
        BuildError: With the end of its output.
        ConfigError: A base image's login cannot be read.
    """
    from openenv_sandbox import image_registries
    from openenv_sandbox._engine import EngineError

    parameters = {
        "t": job.tag,
        "dockerfile": job.dockerfile,
        "labels": json.dumps(dict(job.labels)),
        "buildargs": json.dumps(dict(job.build_args)),
        "rm": "1",
        "forcerm": "1",
        "version": "1",
    }
    if job.no_cache:
        parameters["nocache"] = "1"
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    logins = await daemon_call(image_registries.logins_for, job.bases)
    stream = engine.build(job.context, parameters, logins)
    unfinished = ""
    try:
        async for text in stream:
            *lines, unfinished = (unfinished + text).split("\n")
            for line in lines:
                _tell(line, tail, on_log)
    except EngineError as error:
        raise BuildError(f"docker build failed: {error}", log="\n".join(tail)) from None
    finally:
        _tell(unfinished, tail, on_log)
        await finish(_close(stream), timeout=10.0)


async def _close(stream: object) -> None:
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator, typed as an iterator


def _tell(line: str, tail: deque[str], on_log: LogSink) -> None:
    text = "".join(char for char in _ESCAPE.sub("", line.rstrip()) if char.isprintable() or char == "\t")
    if text and not _NOISE.match(text):
        tail.append(text)
        on_log(text)


def _reason(tail: deque[str]) -> str:
    errors = [line for line in tail if "error" in line.lower() or "failed" in line.lower()]
    return (errors or list(tail) or ["no output"])[-1][:500]
