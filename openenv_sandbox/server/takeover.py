"""Taking a WebSocket over from uvicorn, so that its frames need no ASGI message, queue or task.

It happens in the endpoint, after every middleware, and only when `receive` and `send` are uvicorn's own: something
that wraps them (a middleware that counts messages, say) stays in force, and the connection is served over ASGI.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.connection import Connection
from openenv_sandbox.server.direct import DirectSending
from openenv_sandbox.wire import frames, limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from openenv_sandbox.server.sessions import SessionManager

    Message = MutableMapping[str, Any]

logger = logging.getLogger("openenv.server")

_KNOWN = ("uvicorn.protocols.websockets.websockets_sansio_impl", "WebSocketsSansIOProtocol")
_WRAPPERS = frozenset(("starlette._exception_handler",))

PING_INTERVAL = 20.0
"""Seconds without anything from the client after which it is pinged, which also keeps proxies from closing."""

PONG_TIMEOUT = 3600.0
"""Seconds without anything from the client after which it is taken for gone.

Long, as a blocking client does not answer pings while its owner thinks. A host that vanished is found sooner, by TCP.
"""

CLOSE_TIMEOUT = 5.0
"""Seconds to wait for the other half of the closing handshake."""

TCP_DEAD = 120
"""Seconds that sent bytes may stay without an acknowledgement of the peer's kernel."""


def _unwrapped(send: Any) -> Any:
    """Look through the wrappers that the framework itself puts around ``send``, which do nothing for WebSockets."""
    while getattr(send, "__self__", None) is None and getattr(send, "__module__", None) in _WRAPPERS:
        code = send.__code__
        if "send" not in code.co_freevars:
            break
        send = send.__closure__[code.co_freevars.index("send")].cell_contents
    return send


def carrier(receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> Any:
    """The protocol object of uvicorn behind the two callables, when its connection can be taken over; else None."""
    protocol: Any = getattr(_unwrapped(send), "__self__", None)
    if getattr(receive, "__self__", None) is not protocol or protocol is None:
        return None
    cls = type(protocol)
    if (cls.__module__, cls.__qualname__) != _KNOWN:
        return None
    try:
        transport = protocol.transport
        fresh = protocol.queue.qsize() == 1 and not protocol.handshake_complete and not protocol.close_sent
        known = all(hasattr(protocol, name) for name in ("connections", "default_headers", "loop", "stop_keepalive"))
    except AttributeError:  # another release of uvicorn
        return None
    if not (fresh and known) or transport.is_closing() or transport.get_extra_info("sslcontext") is not None:
        return None
    return protocol


class TakenConnection(DirectSending, Connection, asyncio.Protocol):
    """A connection whose transport is ours.

    Args:
        carrier: uvicorn's protocol object.
        manager: The sessions of the server.
        **options: Those of `Connection`.
    """

    def __init__(self, carrier: Any, manager: SessionManager, **options: Any) -> None:
        super().__init__(manager, **options)
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._carrier = carrier
        self._transport: asyncio.Transport = carrier.transport
        self._connections: set[Any] = carrier.connections
        self._reader = frames.FrameReader(manager.dispatcher.max_message, True, skip_oversize=True)
        self._heard = self._loop.time()
        self._close_sent = False
        self._broken = False
        self._pong_due: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ping_interval = _seconds("OPENENV_WS_PING_INTERVAL", PING_INTERVAL)
        self._pong_timeout = _seconds("OPENENV_WS_PING_TIMEOUT", PONG_TIMEOUT)

    async def run(self, scope: Message) -> None:
        """Serve until the socket is closed."""
        self._begin(scope)
        try:
            await self.serve()
            await self.gone
        finally:
            self._transport.close()

    def _begin(self, scope: Message) -> None:
        carrier, transport = self._carrier, self._transport
        carrier.stop_keepalive()
        # What uvicorn looks at when the endpoint returns: nothing is left for it to do.
        carrier.handshake_complete = carrier.close_sent = True
        self._connections.discard(carrier)
        self._connections.add(self)
        transport.set_protocol(self)
        self._open_direct(transport)
        transport.write(self._response(scope, carrier.default_headers))
        _keep_alive(transport)
        self._timer = self._loop.call_later(self._ping_interval, self._check)
        logger.debug("connection from %s taken over", scope.get("client"))

    def _response(self, scope: Message, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        key = next(value for name, value in scope["headers"] if name == b"sec-websocket-key")
        head = [
            b"HTTP/1.1 101 Switching Protocols",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            b"Sec-WebSocket-Accept: " + frames.accept_key(key.strip()).encode(),
            b"%s: %d" % (limits.HEADER.encode(), self._manager.dispatcher.max_message),
        ]
        names = {name.lower() for name, _ in default_headers}
        if b"date" not in names:
            head.append(b"Date: " + formatdate(usegmt=True).encode())
        head += [name + b": " + value for name, value in default_headers]
        return b"\r\n".join(head) + b"\r\n\r\n"

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._heard = self._loop.time()
        if self._broken:  # read on, as closing with unread bytes would cut off the close frame
            return
        try:
            found = self._reader.feed(data)
        except frames.FrameError as error:
            self._broken = True
            self.close(error.code, error.reason)
            return
        for opcode, payload in found:
            if opcode == frames.TEXT or opcode == frames.BINARY or opcode == frames.OVERSIZE:
                self.received(opcode, payload)
            elif opcode == frames.PING:
                self._pong(payload)
            elif opcode == frames.CLOSE:
                self._closed_by_peer(payload)
                return

    def eof_received(self) -> None:
        """The peer sends nothing more; a half-open WebSocket is of no use."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._connections.discard(self)
        self._close_direct()
        if self._timer is not None:
            self._timer.cancel()
        self.lost()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        """The peer reads more slowly than we answer."""
        self.writable(False)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.writable(True)
        if self._pong_due is not None:
            self._pong(self._pong_due)

    def shutdown(self) -> None:
        """The server is shutting down."""
        self.close(frames.RESTART, "server is shutting down")
        self._transport.close()

    # -- Connection ---------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        if not self._close_sent:
            self._write(frames.header(frames.TEXT, len(frame), masked=False), frame)

    def _end(self, code: int, reason: str) -> None:
        if self._close_sent or self._transport.is_closing():
            return
        self._close_sent = True
        self._write(frames.encode_frame(frames.CLOSE, frames.close_payload(code, reason), mask=False))
        self._later(self._transport.abort, CLOSE_TIMEOUT)

    def _pong(self, payload: bytes) -> None:
        """Answer a ping; of those that come while the peer does not read, the last one alone."""
        self._pong_due = None if self._writable else payload
        if self._pong_due is None and not self._close_sent:
            self._write(frames.encode_frame(frames.PONG, payload, mask=False))

    def _closed_by_peer(self, payload: bytes) -> None:
        if not self._close_sent:
            self._close_sent = True
            code, _ = frames.parse_close(payload)
            answer = b"" if code == frames.NO_STATUS else payload[:2]
            self._write(frames.encode_frame(frames.CLOSE, answer, mask=False))
        self.lost()
        self._transport.close()
        self._later(self._transport.abort, CLOSE_TIMEOUT)

    def _pause_reading(self) -> None:
        self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # -- time ---------------------------------------------------------------------------------------------------

    def _later(self, call: Callable[[], None], delay: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, call)

    def _check(self) -> None:
        """Ping a silent client; end the connection of one that is gone."""
        self._timer = self._loop.call_later(self._ping_interval, self._check)
        if self._paused:  # nothing is read now, so neither pongs nor the end are seen
            self._heard = self._loop.time()
            if _hung_up(self._transport):
                self._transport.abort()
            return
        silent = self._loop.time() - self._heard
        if silent >= self._pong_timeout:
            logger.info("client silent for %g s, connection ended", silent)
            self.close(frames.INTERNAL, "keepalive ping timeout")
            self._transport.abort()
        elif silent >= self._ping_interval * 0.9:
            self._write(frames.encode_frame(frames.PING, b"", mask=False))


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel find a peer whose host has vanished, however long its pings may go unanswered."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wanted = {
        "TCP_KEEPIDLE": 20,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 6,
        "TCP_USER_TIMEOUT": TCP_DEAD * 1000,
    }
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted.items():
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as error:  # closed already, or a platform that refuses; the pings are still there
        logger.debug("no TCP keepalive: %r", error)


def _hung_up(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed, told without reading."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def _seconds(name: str, default: float) -> float:
    try:
        value = float(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if value > 0 else default
