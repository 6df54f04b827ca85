"""One emulated sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from openenv_sandbox.lifecycle import daemon_call

from . import _files, _ns, _proc, _rootfs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from ._engine import Engine
    from ._images import EmuImage
    from ._proc import Proc

T = TypeVar("T")


class BoxGone(Exception):
    """The box exists no more, or does not run."""


class Log:
    """What the main process has said, both streams together; the last MiB."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self._dropped = 0
        self._news = asyncio.Event()

    def add(self, data: bytes) -> None:
        """Append."""
        self.data += data
        if (over := len(self.data) - (1 << 20)) > 0:
            del self.data[:over]
            self._dropped += over
        self._wake()

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self) -> AsyncIterator[bytes]:
        """What is there, then what comes, until the main process has ended."""
        position = 0
        while True:
            if chunk := bytes(self.data[max(0, position - self._dropped) :]):
                position = self._dropped + len(self.data)
                yield chunk
            elif self.ended:
                return
            else:
                await self._news.wait()


class Box:
    """One sandbox: namespaces, an overlay root, processes. Made by `Engine.create`; used on the engine's loop.

    Attributes:
        id: Given at create.
        image: What it was made from.
        state: ``stopped`` boxes have no processes and no files any more.
        created_at, ends_at: On the engine's clock.
        idle_s: Ends after so many seconds without `touch`.
        visible_at: Look-ups show it from then on (fault ``late``).
        labels, data: The face's own.
        env, user, workdir: What the image and create say together; for `exec` only what its arguments say counts.
        main: The process it was started with.
        log: What that has said.
    """

    def __init__(
        self, engine: Engine, id: str, image: EmuImage, labels: Mapping[str, str], data: dict[str, Any]
    ) -> None:
        self.engine, self.id, self.image = engine, id, image
        self.state: Literal["running", "paused", "stopped"] = "running"
        self.labels, self.data = dict(labels), data
        self.created_at = self.visible_at = self.used_at = engine.clock.now()
        self.ends_at: float | None = None
        self.idle_s: float | None = None
        self.on_ttl: Literal["delete", "stop", "pause"] = "delete"
        self.on_idle: Literal["delete", "stop", "pause"] = "delete"
        self.env: dict[str, str] = dict(image.env)
        self.user: str | None = image.user
        self.workdir: str | None = image.workdir
        self.main: Proc | None = None
        self.log = Log()
        self.gone = asyncio.Event()
        self._born: _rootfs.Born | None = None
        self._pidfd = -1

    async def start(self, stage: str, layer: Path | None, paths: list[str]) -> None:
        """Make it; once, by the engine."""
        self._born = await daemon_call(_rootfs.make, stage, self.id, layer, paths)
        self._pidfd = os.pidfd_open(self._born.init.pid)

    @property
    def init_pid(self) -> int:
        """Host pid of its first process."""
        assert self._born is not None
        return self._born.init.pid

    @property
    def upper(self) -> int:
        """Its upper layer, an open folder."""
        assert self._born is not None
        return self._born.upper

    def _must_run(self) -> None:
        if self.state != "running" or self._pidfd < 0:
            raise BoxGone(f"{self.id} is {self.state}")

    # ------------------------------------------------------------------------------------------------ processes

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
    ) -> Proc:
        """Start a command in it.

        Args:
            argv: Program and arguments; no shell.
            env: All the process gets, but PATH and HOME, which have defaults.
            cwd: Default ``/``.
            user: Name or uid, with ``:group`` if wanted; default root.
            stdin: Whether it gets a pipe; otherwise /dev/null.

        Raises:
            BoxGone: It does not run.
            OSError: No such program or folder; ``filename`` says which.
            NoSuchUser: No such user.
        """
        return await self.engine.whole(self._exec(self._handle(), argv, env or {}, cwd, user, stdin))

    async def _exec(self, handle: int, argv: Sequence[str], *how: Any) -> Proc:
        process, pid = await daemon_call(_proc.spawn, handle, self.engine.proc_fd, argv, *how)
        proc = _proc.Proc(process, pid, self.init_pid)
        await proc.attach()
        return proc

    async def run(self, argv: Sequence[str], data: bytes | None = None, **kw: Any) -> tuple[int, bytes, bytes]:
        """`exec` to its end; returns code, stdout, stderr."""
        proc = await self.exec(argv, stdin=data is not None, **kw)
        return await proc.communicate(data)

    async def start_main(self, argv: Sequence[str]) -> Proc:
        """Start ``argv`` with the box's own env, user and workdir as its main process."""
        if self.workdir:
            await self.mkdir(self.workdir)
        self.main = await self.exec(argv, env=self.env, cwd=self.workdir, user=self.user)
        self.engine.keep(self._pump(self.main))
        return self.main

    async def _pump(self, main: Proc) -> None:
        async def one(stream: _proc.Chunks) -> None:
            async for chunk in stream:
                self.log.add(chunk)

        await asyncio.gather(one(main.stdout), one(main.stderr))
        await main.wait()
        self.log.end()

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of it.

        Raises:
            BoxGone: It does not run.
            OSError: Nobody listens there.
        """
        sock = await daemon_call(_dial, self._handle(), port)
        return await asyncio.open_connection(sock=sock, limit=1 << 20)

    # ---------------------------------------------------------------------------------------------------- files

    def _handle(self) -> int:
        """A descriptor of its own for a call that may outlast the box."""
        self._must_run()
        return os.dup(self._pidfd)

    async def visit(self, call: Callable[..., T], *args: Any) -> T:
        """Call a blocking function in a thread that sees the box's files."""
        return await daemon_call(_visit, self._handle(), call, args)

    async def read(self, path: str) -> bytes:
        """The bytes of a file."""
        return await self.visit(_files.read, path)

    async def write(
        self, path: str, data: bytes, user: str | None = None, mode: int | None = None, *, parents: bool = True
    ) -> None:
        """Write a file; missing folders are made unless ``parents`` is False."""
        await self.visit(_files.write, path, data, user, mode, parents)

    async def listdir(self, path: str) -> list[_files.Entry]:
        """What lies in a folder, by name."""
        return await self.visit(_files.listdir, path)

    async def stat(self, path: str) -> _files.Entry:
        """What a path is; raises FileNotFoundError."""
        return await self.visit(_files.stat, path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty folder, or with ``recursive`` any folder."""
        await self.visit(_files.remove, path, recursive)

    async def mkdir(self, path: str, user: str | None = None, mode: int = 0o755) -> None:
        """Make a folder and what is missing above it."""
        await self.visit(_files.mkdir, path, user, mode)

    async def move(self, source: str, target: str) -> None:
        """Rename."""
        await self.visit(_files.move, source, target)

    # --------------------------------------------------------------------------------------------------- states

    async def pause(self) -> None:
        """Stop every process; connections stay open and say nothing."""
        self._must_run()
        self.state = "paused"
        await daemon_call(_proc.signal_all, self.init_pid, signal.SIGSTOP)

    async def resume(self) -> None:
        """Let them go on."""
        if self.state != "paused":
            raise BoxGone(f"{self.id} is {self.state}")
        await daemon_call(_proc.signal_all, self.init_pid, signal.SIGCONT)
        self.state = "running"
        self.touch()

    async def stop(self) -> None:
        """Kill everything in it; it stays in `Engine.boxes`."""
        if self.state != "stopped" and self._pidfd >= 0:
            self.state = "stopped"
            pidfd, self._pidfd = self._pidfd, -1
            assert self._born is not None
            await daemon_call(_end, self._born, pidfd)
            self.gone.set()
        else:
            await self.gone.wait()

    def set_ttl(self, seconds: float | None) -> None:
        """End it so many seconds from now, or never."""
        self.ends_at = None if seconds is None else self.engine.clock.now() + seconds

    def touch(self) -> None:
        """Count as used now."""
        self.used_at = self.engine.clock.now()

    def due(self, now: float) -> Literal["ttl", "idle"] | None:
        """Which timer has run out."""
        if self.ends_at is not None and now >= self.ends_at:
            return "ttl"
        if self.state == "running" and self.idle_s is not None and now >= self.used_at + self.idle_s:
            return "idle"
        return None

    def __repr__(self) -> str:
        return f"<Box {self.id} {self.state} of {self.image.ref}>"


def _dial(pidfd: int, port: int) -> socket.socket:
    _ns.enter(pidfd, _ns.NEWNET)
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setblocking(False)
    return sock


def _visit(pidfd: int, call: Callable[..., T], args: tuple[Any, ...]) -> T:
    _ns.enter(pidfd, _ns.NEWNS)
    os.umask(0o022)
    return call(*args)


def _end(born: _rootfs.Born, pidfd: int) -> None:
    # Waits for the whole pid namespace: the first process is reaped after all others.
    born.init.kill()
    born.init.wait()
    assert born.init.stdin is not None
    with contextlib.suppress(OSError):
        born.init.stdin.close()
    os.close(born.upper)
    os.close(pidfd)
