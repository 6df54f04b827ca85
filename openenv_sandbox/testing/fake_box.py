"""One sandbox of the fake cloud: a folder of its own, real processes, and the tiny environment or a real server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from openenv_sandbox.testing.fake_env import FakeEnv, Script
from openenv_sandbox.testing.faults import FakeApiError

COOKIE = "OPENENV_FAKE_BOX"
ARGV = ("fake-env",)
Sink = Callable[[str, bytes], None]


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Box:
    """What the cloud knows of one sandbox, and what runs in it.

    Attributes:
        id: The cloud's identifier.
        key: Given at create.
        args: What create was called with.
        expires_at: On the cloud's clock; None for never.
        visible_at: Look-ups do not show it before.
        status: running, paused, stopped.
        exited: Set when the main process has ended.
    """

    def __init__(self, id_: str, args: Mapping[str, Any], *, now: float) -> None:
        self.id, self.args, self.created_at = id_, dict(args), now
        self.key: str = args["key"]
        self.labels: dict[str, str] = dict(args.get("labels") or {})
        self.status = "running"
        self.expires_at: float | None = None
        self.idle_s: float | None = args.get("idle_s")
        self.visible_at = now
        self.used_at = now
        self.extended: list[float] = []
        self.root = Path(tempfile.mkdtemp(prefix="openenv-fake-"))
        self.port = free_port()
        self.exited = threading.Event()
        self.exit_code: int | None = None
        self.spoke = threading.Event()
        self.log = bytearray()
        self._lock = threading.Lock()
        self._envs: list[FakeEnv] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._main: subprocess.Popen[bytes] | None = None
        self.env = {
            "PATH": f"{self.root}/bin:{Path(sys.executable).parent}:{os.defpath}",
            "HOME": str(self.root),
            "TMPDIR": str(self.root / "tmp"),
            "LANG": "C",
            COOKIE: self.id,
            **(args.get("env") or {}),
            "PORT": str(self.port),
        }
        (self.root / "bin").mkdir()
        (self.root / "tmp").mkdir()
        program = self.root / "bin" / ARGV[0]
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m openenv_sandbox.testing.fake_env "$@"\n')
        program.chmod(0o755)

    # ------------------------------------------------------------------------------------------------ processes

    def start(self, argv: Sequence[str], script: Mapping[str, Any] | None = None) -> None:
        """Start the main process."""
        if argv[0] == ARGV[0]:
            self._serve(Script.from_argv(argv[1:]), script, self.env, self.write, self._main_ended)
            return
        try:
            self._main = self._popen(argv, self.env, None, None, stdin=subprocess.DEVNULL)
        except OSError as error:
            self.write(f"{argv[0]}: {error.strerror}\n".encode())
            self._main_ended(127)
            return
        threading.Thread(target=self._watch, args=(self._main,), daemon=True).start()

    def _serve(
        self,
        script: Script,
        die: Mapping[str, Any] | None,
        env: Mapping[str, str],
        write: Callable[[bytes], None],
        exited: Callable[[int], None],
    ) -> None:
        for name, value in (die or {}).items():
            setattr(script, name, value)
        self._envs.append(FakeEnv(script, env, write, exited))

    def write(self, data: bytes) -> None:
        """Add to the output of the main process."""
        self.log += data
        self.spoke.set()

    def _main_ended(self, code: int) -> None:
        self.exit_code = code
        if self.status != "stopped" and self.args.get("start") != "exec":
            self.status = "stopped"
        self.exited.set()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        other = threading.Thread(target=self._pump, args=(process.stderr, lambda _, data: self.write(data), "stderr"))
        other.daemon = True
        other.start()
        self._pump(process.stdout, lambda _, data: self.write(data), "stdout")
        other.join()
        self._main_ended(_code(process.wait()))

    def _popen(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        user: str | None,
        stdin: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        extra: dict[str, Any] = {"user": int(user) if user and user.isdigit() else user} if user else {}
        process = subprocess.Popen(
            list(argv),
            cwd=cwd or self.root,
            env=dict(env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            **extra,
        )
        self._processes.add(process)
        return process

    def exec(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, user: str | None, stdin: Any, sink: Sink
    ) -> int:
        """Run one command to its end, in the calling thread; returns the exit code as a shell says it."""
        self.alive()
        self.touch()
        if argv[0] == ARGV[0]:
            return self._exec_env(argv, {**self.env, **env}, sink)
        try:
            process = self._popen(argv, {**self.env, **env}, cwd, user)
        except OSError as error:
            raise FakeApiError(422, f"{argv[0]}: {error.strerror}") from error
        threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
        assert process.stdout is not None
        assert process.stderr is not None
        other = threading.Thread(target=self._pump, args=(process.stderr, sink, "stderr"), daemon=True)
        other.start()
        self._pump(process.stdout, sink, "stdout")
        other.join()
        code = _code(process.wait())
        self._processes.discard(process)
        if self.status == "stopped":
            raise FakeApiError(404, f"sandbox {self.id} is gone")
        return code

    def _exec_env(self, argv: Sequence[str], env: Mapping[str, str], sink: Sink) -> int:
        ended, codes = threading.Event(), list[int]()

        def exited(code: int) -> None:
            codes.append(code)
            ended.set()

        def write(data: bytes) -> None:
            self.write(data)
            sink("stdout", data)

        self._serve(Script.from_argv(argv[1:]), self.args.get("die"), env, write, exited)
        ended.wait()
        if self.status == "stopped":
            raise FakeApiError(404, f"sandbox {self.id} is gone")
        return codes[0]

    def _pump(self, stream: IO[bytes], sink: Sink, name: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := stream.read(64 << 10):
                sink(name, data)
        stream.close()

    # -------------------------------------------------------------------------------------------------- states

    def alive(self) -> None:
        """Fail as the cloud does for what is no more."""
        if self.status == "stopped":
            raise FakeApiError(404, f"sandbox {self.id} is gone")

    def touch(self, now: float | None = None) -> None:
        """Count as used."""
        self.used_at = now if now is not None else self.used_at

    def due(self, now: float) -> bool:
        """Whether a timer of the cloud has run out."""
        if self.status == "paused":
            return self.expires_at is not None and now >= self.expires_at
        idle = self.idle_s is not None and now >= self.used_at + self.idle_s
        return idle or (self.expires_at is not None and now >= self.expires_at)

    def pause(self, on: bool) -> None:
        """Freeze or thaw every process."""
        self.alive()
        self.status = "paused" if on else "running"
        for env in self._envs:
            env.resumed.clear() if on else env.resumed.set()
        self._signal(signal.SIGSTOP if on else signal.SIGCONT)

    def end(self) -> None:
        """Kill everything and remove the folder."""
        with self._lock:
            if self.status == "gone":
                return
            first = self.status != "stopped"
            self.status = "stopped"
        for env in self._envs:
            env.end(137)
        self._signal(signal.SIGKILL)
        if self._main is None and first:
            self._main_ended(137)
        for process in list(self._processes):
            process.wait(10)
        shutil.rmtree(self.root, ignore_errors=True)

    def _signal(self, number: int) -> None:
        mark = f"{COOKIE}={self.id}\0".encode()
        for _ in range(2):  # a process may fork between reading and killing
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                try:
                    if mark in (entry / "environ").read_bytes() + b"\0":
                        os.kill(int(entry.name), number)
                except OSError:
                    continue
            if number != signal.SIGKILL:
                return


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


def _feed(process: subprocess.Popen[bytes], chunks: Any) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[process.stdin.write(view) or 0 :]
    with contextlib.suppress(OSError):
        process.stdin.close()
