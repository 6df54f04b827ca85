"""Connections to a local sandbox's supervisor, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import struct
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Literal

from openenv_providers import _local_frames as wire
from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SOCKET = "control"
LONGEST = 100
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child that kept them would keep sandboxes alive whose owner was killed.
    for sock in list(_OPEN):
        sock.close()
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def unreachable(error: OSError) -> bool:
    """Whether ``error`` says that nothing listens there."""
    return error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


@contextlib.contextmanager
def address(folder: Path) -> Iterator[str]:
    """A name of the folder's socket that is short enough for the kernel.

    Raises:
        ConfigError: There is none.
    """
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"the state folder's path is too long for a unix socket: {folder.parent}",
            hint="set OPENENV_STATE_DIR to a shorter path",
        )
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


class Link:
    """One connection: frames in, frames out, and word when it ended.

    Args:
        sock: Connected.
        on_frame: Called on the loop for each frame; without it `reply` returns them.
        on_end: Called once when the other side is gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[int, bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        sock.setblocking(False)
        _OPEN.add(sock)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_frame, self._on_end = on_frame, on_end
        self._inbox, self._outbox = bytearray(), bytearray()
        self._frames: deque[tuple[int, bytes]] = deque()
        self._news = asyncio.Event()
        self._open = True
        self.ended = False
        self.fds: list[int] = []
        self._loop.add_reader(sock, self._read)

    @classmethod
    async def open(cls, folder: Path) -> Link:
        """Connect to the sandbox whose files lie in ``folder``.

        Raises:
            OSError: Nothing listens there.
        """
        return cls(await connect(folder))

    def send(self, kind: int, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Queue a frame; descriptors go with its first byte. A connection that is gone takes it silently."""
        if not self._open:
            return
        data = wire.frame(kind, payload)
        with contextlib.suppress(OSError):
            if fds:
                data = data[socket.send_fds(self._sock, [data], list(fds)) :]
            self._outbox += data
            self._write()

    async def reply(self) -> tuple[int, bytes]:
        """The next frame.

        Raises:
            EOFError: The connection ended.
        """
        while not self._frames:
            if self.ended or not self._open:
                raise EOFError("the supervisor is gone")
            self._news.clear()
            await self._news.wait()
        return self._frames.popleft()

    def _write(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._sock.send(self._outbox)]
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._write)
            return
        except OSError:
            self._outbox.clear()
        self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, 2**18, 4, _CLOSE_ON_EXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self.fds += fds
        self._inbox += data
        try:
            while (message := wire.take(self._inbox)) is not None:
                if self._on_frame is not None:
                    self._on_frame(*message)
                else:
                    self._frames.append(message)
        except ValueError:
            data = b""
        if not data:
            self.ended = True
            self._loop.remove_reader(self._sock)
            if self._on_end is not None:
                self._on_end()
        self._news.set()

    def process(self) -> int | None:
        """The supervisor's process id; None where the kernel does not say."""
        if not hasattr(socket, "SO_PEERCRED"):
            return None
        size = struct.calcsize("3i")
        pid = struct.unpack("3i", self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
        return int(pid) or None

    def close(self) -> None:
        """End it. May be called twice."""
        if self._open:
            self._open = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._sock)
                self._loop.remove_writer(self._sock)
            self._sock.close()
            for fd in self.fds:
                os.close(fd)
            self.fds = []
            self._news.set()


async def connect(folder: Path) -> socket.socket:
    """A connected socket.

    Raises:
        OSError: Nothing listens there.
    """
    deadline = asyncio.get_running_loop().time() + 10
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        while True:
            try:
                with address(folder) as path:
                    sock.connect(path)
                return sock
            except BlockingIOError:
                # The queue of connections is full, of which no event tells.
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.005)
    except BaseException:
        sock.close()
        raise


async def ask(folder: Path, kind: int, payload: bytes = b"", *, timeout: float = 10.0) -> tuple[int, bytes]:
    """One question, one answer.

    Raises:
        OSError: Nothing listens there, or there is no answer in time.
        EOFError: The sandbox ended meanwhile.
    """
    link = await Link.open(folder)
    try:
        link.send(kind, payload)
        return await asyncio.wait_for(link.reply(), timeout)
    except asyncio.TimeoutError:
        raise OSError(errno.ETIMEDOUT, "the supervisor does not answer") from None
    finally:
        link.close()


async def status(folder: Path) -> Literal["running", "paused", "stopped", "unknown"]:
    """What a sandbox does now."""
    try:
        _, payload = await ask(folder, wire.STATUS, timeout=2)
    except EOFError:
        return "stopped"
    except OSError as error:
        return "stopped" if unreachable(error) else "unknown"
    return "paused" if payload == b"paused" else "running"


async def end(folder: Path, *, timeout: float = 10.0) -> None:
    """End the sandbox of ``folder`` and wait until every process of it is gone. Nothing happens where none runs.

    Raises:
        OSError: It does not go.
    """
    try:
        link = await Link.open(folder)
    except OSError as error:
        if unreachable(error):
            return
        raise
    pid = link.process()
    try:
        link.send(wire.QUIT)
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(_until_gone(link, pid), timeout)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            await asyncio.wait_for(_until_gone(link, pid), timeout)
        except asyncio.TimeoutError:
            raise OSError(errno.ETIMEDOUT, "its processes do not end") from None
    finally:
        link.close()


async def _until_gone(link: Link, pid: int | None) -> None:
    """Until the supervisor is no process any more: the kernel ends a namespace's others before its first one."""
    fd = -1
    if pid is not None and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
    with contextlib.suppress(EOFError):
        while True:
            await link.reply()
    if fd >= 0:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(fd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
