"""The way to a port of a sandbox that has no network: a listener here, connections made by the supervisor there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from openenv_providers import _local_frames as wire
from openenv_providers._local_link import Link

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 2**18


async def dial(folder: Path, port: int) -> socket.socket:
    """A socket connected to ``port`` inside: it was made in the sandbox's network and works from here.

    Raises:
        OSError: Nobody listens there, or the sandbox is gone.
    """
    link = await Link.open(folder)
    try:
        link.send(wire.DIAL, b"%d" % port)
        try:
            kind, payload = await asyncio.wait_for(link.reply(), 10)
        except (EOFError, asyncio.TimeoutError):
            raise OSError(errno.ECONNRESET, "the sandbox ended") from None
        if kind != wire.CHANNEL or not link.fds:
            number = wire.NUMBER.unpack(payload)[0] if payload else errno.ECONNREFUSED
            raise OSError(number, os.strerror(number))
        return socket.socket(fileno=link.fds.pop())
    finally:
        link.close()


class Relay:
    """Listens on the loopback of this machine and passes bytes on.

    Args:
        folder: Where the sandbox's socket lies.
        port: The port inside.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Listen; returns the port here."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2 * CHUNK, backlog=512)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening and cut what is open. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in list(self._open):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        inner: asyncio.StreamWriter | None = None
        try:
            inner_reader, inner = await asyncio.open_connection(
                sock=await dial(self._folder, self._port), limit=2 * CHUNK
            )
            self._open.add(inner)
            await asyncio.gather(_copy(reader, inner), _copy(inner_reader, writer))
        except OSError:
            writer.transport.abort()
        finally:
            for one in (writer, inner):
                if one is not None:
                    self._open.discard(one)
                    one.close()
                    with contextlib.suppress(OSError):
                        await one.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
