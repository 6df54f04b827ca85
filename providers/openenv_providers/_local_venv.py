"""Cached virtual environments for folders whose dependencies are not at hand."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from openenv_providers import _local_deps as deps
from openenv_providers import _local_plan as plan
from openenv_providers._local_plan import Interpreter
from openenv_sandbox.errors import BuildError
from openenv_sandbox.lifecycle import CountedThreads, daemon_call
from openenv_sandbox.wheel import own_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openenv_sandbox.folder import Folder

log = logging.getLogger("openenv.provider.local")
READY = "openenv-env.json"
_INPUTS = ("pyproject.toml", "uv.lock", "requirements.txt", "server/requirements.txt")
# What a package manager needs to reach its index, and nothing else of the caller's environment.
_PASSED = ("HOME", "PATH", "TMPDIR", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy")
_PASSED_PREFIXES = ("PIP_", "UV_", "SSL_", "REQUESTS_CA", "XDG_")


def cache_dir() -> Path:
    """``OPENENV_CACHE_DIR``, else the user's cache folder."""
    named = os.environ.get("OPENENV_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "openenv"


def environments() -> Path:
    """Where they lie."""
    return cache_dir() / "local"


def key(folder: Folder, base: Interpreter, wheel: Path) -> str:
    """What an environment depends on: the files that declare dependencies, the interpreter, our own wheel."""
    digest = hashlib.sha256()
    for name in _INPUTS:
        file = Path(folder.path, name)
        digest.update(name.encode() + b"\0")
        if file.is_file():
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    for text in (base.version, os.path.realpath(base.executable), wheel.parent.name, wheel.name):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:24]


class Builder:
    """Makes one environment, once for all processes of this user. Runs in a thread; `cancel` ends it from another.

    Args:
        folder: For which folder.
        base: From which interpreter.
        wheel: Our own wheel.
        on_log: Receives lines of output, in the thread.
    """

    def __init__(self, folder: Folder, base: Interpreter, wheel: Path, on_log: Callable[[str], None]) -> None:
        self.folder, self.base, self.wheel, self.on_log = folder, base, wheel, on_log
        self._cancelled = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._tail: deque[str] = deque(maxlen=60)

    def cancel(self) -> None:
        """End what runs; `build` raises in its thread."""
        self._cancelled.set()
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def build(self) -> Interpreter:
        """The environment's interpreter, made when it is not there yet. A failure leaves nothing.

        Raises:
            BuildError: With the end of the package manager's output.
        """
        place = environments() / key(self.folder, self.base, self.wheel)
        if (found := _ready(place)) is not None:
            return found
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked(place.with_suffix(".lock")):
                if (found := _ready(place)) is not None:
                    return found
                try:
                    return self._make(place)
                except BaseException:
                    shutil.rmtree(place, ignore_errors=True)
                    raise
        except OSError as error:
            raise BuildError(f"the environment cannot be made in {place.parent}: {error}", provider="local") from error

    @contextlib.contextmanager
    def _locked(self, file: Path) -> Iterator[None]:
        with open(file, "w", encoding="utf-8") as handle:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    # Another process builds; flock cannot be waited for and cancelled at once.
                    if self._cancelled.wait(0.1):
                        raise self._failed("cancelled") from None
            yield

    def _make(self, place: Path) -> Interpreter:
        shutil.rmtree(place, ignore_errors=True)
        self.on_log(f"making an environment for {self.folder.path} with Python {self.base.version}")
        python = str(place / "bin" / "python")
        install, uninstall = self._create(place, python)
        listed = place / "requirements.txt"
        listed.write_text("\n".join(self._requirements()) + "\n", encoding="utf-8")
        self._run([*install, "-r", str(listed)])
        # Another distribution's wheel overwrites ours file by file; ours goes in last.
        self._run([*uninstall, "openenv-core"], check=False)
        own = "--reinstall" if "uv" in os.path.basename(install[0]) else "--force-reinstall"
        self._run([*install, "--no-deps", own, str(self.wheel)])
        made = Interpreter(python, (str(place), *self.base.base), self.base.base, self.base.version)
        (place / READY).write_text(json.dumps(asdict(made)), encoding="utf-8")
        return made

    def _create(self, place: Path, python: str) -> tuple[list[str], list[str]]:
        """Make the bare environment; returns how to install into it and how to remove from it."""
        pip = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
        uv = shutil.which("uv")
        if self._run([self.base.executable, "-I", "-m", "venv", str(place)], check=False):
            own = [python, *pip]
            return [*own, "install"], [*own, "uninstall", "-y"]
        shutil.rmtree(place, ignore_errors=True)
        bare = [self.base.executable, "-I", "-m", "venv", "--without-pip", str(place)]
        if self._run([self.base.executable, *pip, "--version"], check=False) and self._run(bare, check=False):
            other = [self.base.executable, *pip, "--python", python]
            return [*other, "install"], [*other, "uninstall", "-y"]
        shutil.rmtree(place, ignore_errors=True)
        if uv and self._run([uv, "venv", "-q", "--python", self.base.executable, str(place)], check=False):
            return [uv, "pip", "install", "--python", python], [uv, "pip", "uninstall", "--python", python]
        raise self._failed("no way to make a virtual environment", "apt-get install python3-venv, or install uv")

    def _requirements(self) -> list[str]:
        """The folder's dependencies with our own wheel wherever they say openenv."""
        lines = []
        own = f"{deps.OWN} @ {self.wheel.as_uri()}"
        for text in self.folder.dependencies or ():
            try:
                wanted = deps.parse(text)
            except ValueError:
                lines.append(text)
                continue
            if wanted.name in (deps.OWN, "openenv-core"):
                extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
                lines.append(f"{deps.OWN}{extras} @ {self.wheel.as_uri()}")
            else:
                lines.append(text)
        return lines if any(line.startswith(deps.OWN) for line in lines) else [*lines, own]

    def _run(self, argv: list[str], *, check: bool = True) -> bool:
        env = {n: v for n, v in os.environ.items() if n in _PASSED or n.startswith(_PASSED_PREFIXES)}
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            cwd=self.folder.path,
            start_new_session=True,
        )
        self._process = process
        if self._cancelled.is_set():
            self.cancel()
        with process:
            for line in process.stdout or ():
                self._tail.append(line)
                if check:
                    self.on_log(line.rstrip())
        if self._cancelled.is_set():
            raise self._failed("cancelled")
        if check and process.returncode:
            raise self._failed("installing the environment's dependencies failed")
        return process.returncode == 0

    def _failed(self, what: str, hint: str | None = None) -> BuildError:
        log = "".join(self._tail)
        return BuildError(f"{self.folder.path}: {what}", log=log, provider="local", hint=hint)


def _ready(place: Path) -> Interpreter | None:
    try:
        data = json.loads((place / READY).read_text(encoding="utf-8"))
        prefixes, base = tuple(map(str, data["prefixes"])), tuple(map(str, data["base"]))
        made = Interpreter(str(data["executable"]), prefixes, base, str(data["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return made if os.access(made.executable, os.X_OK) else None


def remove(place: Path) -> None:
    """Remove an environment, or what is left of one."""
    if place.parent == environments():
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            place.with_suffix(".lock").unlink()


def made() -> list[Path]:
    """Every finished environment."""
    with contextlib.suppress(OSError):
        return sorted(path.parent for path in environments().glob(f"*/{READY}"))
    return []


async def resolve(
    path: Path, python: str | None, threads: CountedThreads, on_log: Callable[[str], None]
) -> tuple[Folder, Interpreter]:
    """What a folder says, and the interpreter that can run it: this one, or that of an environment of its own.

    Args:
        path: The folder.
        python: Makes the environment from this interpreter instead.
        threads: Where files are read.
        on_log: Receives the output of building an environment, on the loop.

    Raises:
        ImageError: The folder cannot be understood, or needs a Python that is not here.
        BuildError: Its dependencies cannot be installed.
    """
    folder = await threads.run(plan.read, path)
    here = plan.running()
    reason = "another interpreter was asked for" if python else await threads.run(plan.at_hand, folder, here)
    if not reason:
        return folder, here
    log.debug("%s gets an environment of its own: %s", path, reason)
    base = await threads.run(plan.choose, folder, python)
    wheel = await threads.run(own_wheel, cache_dir() / "wheels")
    builder = Builder(folder, base, wheel, partial(_forward, asyncio.get_running_loop(), on_log))
    try:
        return folder, await daemon_call(builder.build)
    except asyncio.CancelledError:
        builder.cancel()
        raise


def _forward(loop: asyncio.AbstractEventLoop, sink: Callable[[str], None], line: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
        loop.call_soon_threadsafe(sink, line)
