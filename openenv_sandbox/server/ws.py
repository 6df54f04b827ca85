"""The ``/ws`` endpoint: raw ASGI, on a connection taken over from uvicorn where that is possible."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from openenv_sandbox.server import takeover
from openenv_sandbox.server.connection import Connection
from openenv_sandbox.wire import frames, limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from openenv_sandbox.server.sessions import SessionManager

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger("openenv.server")


class WebSocketEndpoint:
    """An ASGI application for one route.

    Args:
        manager: The sessions of the server.
        raw_rpc: Messages are bare JSON-RPC.
    """

    def __init__(self, manager: SessionManager, *, raw_rpc: bool = False) -> None:
        self._manager = manager
        self._raw_rpc = raw_rpc
        self.__name__ = "ws"  # what the route is called in listings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        session_id = None if self._raw_rpc else _session_id(scope)
        carrier = takeover.carrier(receive, send)
        if carrier is not None:
            taken = takeover.TakenConnection(carrier, self._manager, session_id=session_id, raw_rpc=self._raw_rpc)
            await taken.run(scope)
            return
        await self._plain(session_id, receive, send)

    async def _plain(self, session_id: str | None, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        limit = self._manager.dispatcher.max_message
        await send({"type": "websocket.accept", "headers": [(limits.HEADER.encode(), b"%d" % limit)]})
        connection = AsgiConnection(self._manager, receive, send, session_id=session_id, raw_rpc=self._raw_rpc)
        await connection.run()


class AsgiConnection(Connection):
    """A connection over the messages of ASGI, for test clients and servers other than uvicorn's own."""

    def __init__(self, manager: SessionManager, receive: Receive, send: Send, **options: Any) -> None:
        super().__init__(manager, **options)
        self._asgi_receive = receive
        self._asgi_send = send
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue()
        self._reading = asyncio.Event()
        self._reading.set()

    async def run(self) -> None:
        """Serve until both sides have ended."""
        reader = asyncio.ensure_future(self._read())
        writer = asyncio.ensure_future(self._write())
        try:
            await self.serve()
            await writer
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self) -> None:
        limit = self._manager.dispatcher.max_message
        try:
            while True:
                await self._reading.wait()
                message = await self._asgi_receive()
                if message["type"] != "websocket.receive":
                    return
                text = message.get("text")
                if text is None:
                    self.received(frames.BINARY, message.get("bytes") or b"")
                elif len(text) > limit or (len(text) > limit // 4 and len(text.encode()) > limit):
                    self.received(frames.OVERSIZE, str(len(text.encode())))
                else:
                    self.received(frames.TEXT, text)
        finally:
            self.lost()

    async def _write(self) -> None:
        try:
            while (message := await self._outgoing.get()) is not None:
                await self._asgi_send(message)
                if self._outgoing.empty():
                    self.writable(True)
        except Exception as error:  # each server has its own way of saying that the peer is gone
            logger.debug("socket gone while sending: %r", error)
            self.lost()

    def _send(self, frame: bytes) -> None:
        self._writable = False
        self._outgoing.put_nowait({"type": "websocket.send", "text": frame.decode()})

    def _end(self, code: int, reason: str) -> None:
        self._outgoing.put_nowait({"type": "websocket.close", "code": code, "reason": reason})

    def _pause_reading(self) -> None:
        self._reading.clear()

    def _resume_reading(self) -> None:
        self._reading.set()

    def _finished(self) -> None:
        self._outgoing.put_nowait(None)


def _session_id(scope: Message) -> str | None:
    query = scope.get("query_string") or b""
    if not query:
        return None
    values = parse_qs(query.decode("latin-1")).get("session_id")
    return values[0] if values else None
