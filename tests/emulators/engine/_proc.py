"""Processes inside a box, driven from the engine's loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING, Any

from openenv_sandbox.lifecycle import daemon_call

from . import _ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoSuchUser(Exception):
    """The box knows no user of that name."""


class Chunks(asyncio.StreamReader):
    """A stream that is iterated by what arrives, not by lines."""

    async def __anext__(self) -> bytes:
        data = await self.read(1 << 16)
        if not data:
            raise StopAsyncIteration
        return data


class User:
    """Who a command runs as: ``name``, ``uid``, ``name:group`` or ``uid:gid``."""

    def __init__(self, text: str) -> None:
        name, _, group = text.partition(":")
        entry = _entry("/etc/passwd", name)
        if entry is None and not name.isdigit():
            raise NoSuchUser(name)
        self.uid = int(entry[2]) if entry else int(name)
        self.gid = int(entry[3]) if entry else 0
        self.home = entry[5] if entry and entry[5] else "/"
        if group:
            found = _entry("/etc/group", group)
            if found is None and not group.isdigit():
                raise NoSuchUser(f"group {group}")
            self.gid = int(found[2]) if found else int(group)


def _entry(file: str, wanted: str) -> list[str] | None:
    with contextlib.suppress(OSError), open(file) as lines:
        for line in lines:
            fields = line.rstrip("\n").split(":")
            if len(fields) > 3 and wanted in ((fields[0], fields[2]) if wanted.isdigit() else (fields[0],)):
                return fields
    return None


def spawn(
    pidfd: int,
    proc: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    user: str | None,
    stdin: bool,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command in the namespaces of ``pidfd``; runs in a thread of its own.

    Returns:
        The process, and its pid as the box counts.
    """
    _ns.enter(pidfd)
    os.umask(0o022)
    who = User(user or "0")
    # As somebody else Python forks a copy of the whole test process; as itself it does not.
    other: dict[str, Any] = (
        {} if (who.uid, who.gid) == (0, 0) else {"user": who.uid, "group": who.gid, "extra_groups": []}
    )
    process = subprocess.Popen(
        list(argv),
        cwd=cwd or "/",
        env={"PATH": PATH, "HOME": who.home, **env},
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        **other,
    )
    return process, inner_pid(proc, process.pid)


def _read(proc: int, path: str) -> str:
    with open(os.open(path, os.O_RDONLY, dir_fd=proc)) as file:
        return file.read()


def inner_pid(proc: int, pid: int) -> int:
    """The pid that a process has in its own namespace; ``proc`` is the host's /proc, opened."""
    status = _read(proc, f"{pid}/status")
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])


def members(init: int, *, session: int | None = None) -> list[int]:
    """Host pids of the processes in the pid namespace of ``init``, itself not; of one session if given."""
    found = []
    try:
        space = os.readlink(f"/proc/{init}/ns/pid")
    except OSError:
        return []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == init:
            continue
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") != space:
                continue
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[0] not in "ZX" and session in (None, int(fields[3])):
                found.append(int(name))
    return found


def signal_all(init: int, number: int, *, session: int | None = None) -> None:
    """Signal them all, until no new one appears."""
    done: set[int] = set()
    for _ in range(10):
        new = set(members(init, session=session)) - done
        if not new:
            return
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        done |= new


class Proc:
    """One command inside a box.

    Attributes:
        pid: As the box counts.
        stdout, stderr: Async iterators of bytes, with ``read``.
        code: How it ended, as a shell says it (137 for SIGKILL); None while it runs.
    """

    def __init__(self, process: subprocess.Popen[bytes], pid: int, init: int) -> None:
        self.pid, self.host_pid, self._init = pid, process.pid, init
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.stdout, self.stderr = Chunks(), Chunks()
        self._stdin: asyncio.StreamWriter | None = None
        self._ended = asyncio.Event()
        self.code: int | None = None

    async def attach(self) -> None:
        """Connect the pipes and watch the end; once, by the box."""
        self._pidfd = os.pidfd_open(self.host_pid)
        self._loop.add_reader(self._pidfd, self._reap)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        await self._pipe(self.stdout, self._process.stdout)
        await self._pipe(self.stderr, self._process.stderr)
        if self._process.stdin is not None:
            transport, protocol = await self._loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, self._process.stdin
            )
            self._stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)

    async def _pipe(self, reader: asyncio.StreamReader, pipe: IO[bytes]) -> None:
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)

    def _reap(self) -> None:
        if self._process.poll() is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        returned = self._process.returncode
        self.code = returned if returned >= 0 else 128 - returned
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.transport.abort()
        self._ended.set()

    async def write(self, data: bytes) -> None:
        """Write to its stdin.

        Raises:
            BrokenPipeError: It has ended or closed its stdin.
        """
        if self._stdin is None or self._stdin.is_closing():
            raise BrokenPipeError("stdin is closed")
        self._stdin.write(data)
        try:
            await self._stdin.drain()
        except ConnectionError as error:
            raise BrokenPipeError(str(error)) from None

    async def close_stdin(self) -> None:
        """End of input."""
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        await self._ended.wait()
        assert self.code is not None
        return self.code

    async def communicate(self, data: bytes | None = None) -> tuple[int, bytes, bytes]:
        """Feed ``data``, read both streams to their end; returns code, stdout, stderr."""
        out, err, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self._feed(data))
        return await self.wait(), out, err

    async def _feed(self, data: bytes | None) -> None:
        if data is not None:
            with contextlib.suppress(BrokenPipeError):
                await self.write(data)
        await self.close_stdin()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal everything in its session."""
        session = self.host_pid
        await daemon_call(_signal_session, self._init, number, session)


def _signal_session(init: int, number: int, session: int) -> None:
    # Session ids in /proc/*/stat are counted in the reader's own pid namespace: the host's.
    signal_all(init, number, session=session)
