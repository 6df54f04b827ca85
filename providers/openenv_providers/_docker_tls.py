"""TLS whose writing side can be closed by itself, as a command's input wants: asyncio's own cannot do that.

The end of input is the alert ``close_notify``; the daemon goes on sending after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from openenv_sandbox.lifecycle import keep

_CHUNK = 2**16


async def connect(name: str, port: int, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, Any]:
    """Open a connection; returns a reader, and a writer with the methods of asyncio's.

    Raises:
        OSError: There is none, or the certificates do not fit.
    """
    reader, writer = await asyncio.open_connection(name, port)
    stream = _Tls(reader, writer, context, name)
    try:
        await stream.handshake()
    except BaseException:
        writer.transport.abort()
        raise
    return stream.plain, stream


class _Tls:
    """Both directions of one connection; decrypted bytes are fed to ``plain``."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, name: str
    ) -> None:
        self._reader, self._writer = reader, writer
        self.transport = writer.transport
        self.plain = asyncio.StreamReader()
        self.plain.set_transport(writer.transport)  # a reader that is slow makes the daemon wait
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not await self._fill():
                    raise ConnectionResetError("the daemon hung up in the handshake") from None
        self._flush()
        keep(self._pump(), name="openenv-docker-tls")

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            self._tls.write(data[start : start + _CHUNK])
        self._flush()

    async def drain(self) -> None:
        await self._writer.drain()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # what it would wait for is the other side's end
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if data := self._out.read():
            self._writer.write(data)

    async def _fill(self) -> bool:
        data = await self._reader.read(_CHUNK)
        self._in.write(data)
        return bool(data)

    async def _pump(self) -> None:
        try:
            while self._take() and await self._fill():
                pass
        except OSError as error:
            return self.plain.set_exception(error)
        self.plain.feed_eof()

    def _take(self) -> bool:
        """Decrypt what came; False when the daemon said that nothing follows."""
        while True:
            try:
                data = self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                self._flush()
                return True
            except ssl.SSLZeroReturnError:
                return False
            if not data:
                return False
            self.plain.feed_data(data)
