"""TCP proxies as faults: what stands between a client and a sandbox at real vendors."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from .harness import LoopThread


class FaultyProxy:
    """Forwards connections to ``port`` with one fault.

    Args:
        port: Where the server listens; None where nothing is forwarded.
        answer: Raw HTTP response instead of forwarding.
        need: Header line that every request must contain, else 401.
        drop_control: Swallow ping, pong and close frames in both directions.
        cut_after: Cut every connection after so many seconds.
        reset_first: Cut so many connections before a byte of the answer.
        connect: Be an HTTP proxy that answers CONNECT.
    """

    def __init__(
        self,
        port: int | None,
        *,
        answer: bytes | None = None,
        need: str | None = None,
        drop_control: bool = False,
        cut_after: float | None = None,
        reset_first: int = 0,
        connect: bool = False,
    ) -> None:
        self.upstream, self.answer, self.need = port, answer, need
        self.drop_control, self.cut_after, self.reset_first, self.connect = (
            drop_control,
            cut_after,
            reset_first,
            connect,
        )
        self.heads: list[str] = []
        self.dropped: list[int] = []
        self._thread = LoopThread()

        async def start() -> asyncio.Server:
            return await asyncio.start_server(self._serve, "127.0.0.1", 0)

        self.server: asyncio.Server = self._thread.call(start)
        self.port: int = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.decode("latin-1"))
        if self.reset_first > 0:
            self.reset_first -= 1
            return
        answer = self.answer
        if self.need is not None and self.need.lower() not in self.heads[-1].lower():
            answer = answer or b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 12\r\n\r\nno key given"
        elif self.need is not None:
            answer = None
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            await reader.read(1)
            return
        assert self.upstream is not None
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        pumps: list[asyncio.Future[None]] = []
        try:
            if self.connect:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                up_writer.write(head)
                writer.write(await up_reader.readuntil(b"\r\n\r\n"))
            pumps = [asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, up_writer), (up_reader, writer))]
            await asyncio.wait(pumps, timeout=self.cut_after, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up_writer.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                data = await (_frame(source) if self.drop_control else source.read(65536))
                if not data:
                    return
                if self.drop_control and data[0] & 0x0F >= 8:
                    self.dropped.append(data[0] & 0x0F)
                    continue
                sink.write(data)
                await sink.drain()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *exc: Any) -> None:
        async def stop() -> None:
            self.server.close()

        self._thread.call(stop)
        self._thread.stop()


async def _frame(source: asyncio.StreamReader) -> bytes:
    """One whole WebSocket frame, as it is."""
    head = await source.readexactly(2)
    size = head[1] & 0x7F
    if size == 126:
        head += await source.readexactly(2)
        size = int.from_bytes(head[2:], "big")
    elif size == 127:
        head += await source.readexactly(8)
        size = int.from_bytes(head[2:], "big")
    if head[1] & 0x80:
        size += 4
    return head + await source.readexactly(size)
