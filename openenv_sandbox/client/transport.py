"""The asynchronous transport: a protocol of our own on the running event loop (asyncio or uvloop)."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, cast

import anyio

from openenv_sandbox.client import handshake
from openenv_sandbox.client.connection import CLOSE_MESSAGE, Connection, Settings, tune
from openenv_sandbox.errors import ClientError, ConnectError, SessionLost
from openenv_sandbox.wire import frames

if TYPE_CHECKING:
    from openenv_sandbox.client.target import Target

_START_BUFFER = 64 * 1024
_MAX_BUFFER = 1024 * 1024
_LATE_S = 0.02
"""A timer that fires after the loop stood still waits this long for what lies in the socket already."""


class AsyncConnection(Connection, asyncio.BufferedProtocol):
    """A session on the running loop; use `open`."""

    def __init__(self, target: Target, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(target, settings)
        self.loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_START_BUFFER)
        self._view = memoryview(self._buffer)
        self._head: bytearray | None = bytearray()
        self._arrived = asyncio.Event()
        self._gone = asyncio.Event()
        self._cut: BaseException | None = None
        self._lock = asyncio.Lock()
        self._waiter: asyncio.Future[tuple[int, bytes] | ClientError] | None = None
        self._deadline: float | None = None
        self._timeout: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = loop.time()
        self._pinged: float | None = None
        self._late = False

    # -------------------------------------------------------------------------------------------------- opening

    @classmethod
    async def open(cls, target: Target, settings: Settings) -> AsyncConnection:
        """Dial, upgrade, and return the open session.

        Raises:
            ConnectError: Nothing answered, or something else than an environment server.
        """
        self = cls(target, settings, asyncio.get_running_loop())
        try:
            with anyio.fail_after(settings.connect_timeout):
                await self._dial()
                await self._upgrade()
        except TimeoutError:
            self._drop()
            raise handshake.failed(target, f"no answer within {settings.connect_timeout:g} s") from None
        except ssl.SSLError as error:
            self._drop()
            raise handshake.failed(target, f"TLS failed: {error}", retryable=False) from error
        except OSError as error:
            self._drop()
            if isinstance(error, ConnectError):
                raise
            raise handshake.failed(target, handshake.os_reason(error)) from error
        except BaseException:
            self._drop()
            raise
        if self._ping_interval is not None:
            self._schedule(self.loop.time() + self._ping_interval)
        return self

    async def _dial(self) -> None:
        target, extra = self.target, dict[str, Any]()
        if isinstance(self.loop, asyncio.BaseEventLoop):  # uvloop has no such argument and tries one after the other
            extra["happy_eyeballs_delay"] = 0.25
        if target.tls is not None and target.proxy is None:
            extra.update(ssl=target.tls, server_hostname=target.host)
        for last, host in target.dial_hosts():
            try:
                await self.loop.create_connection(lambda: self, host, target.dial[1], **extra)
                break
            except OSError as error:
                if last or isinstance(error, ssl.SSLError):
                    raise
        if target.proxy is not None:
            self._write(handshake.connect_request(target))
            head, rest = await self._response()
            if head.status != 200:
                raise handshake.refused(target, head, await self._body(head, rest), by_proxy=True)
            self._head = bytearray()
            if target.tls is not None and self._transport is not None:
                plain = self._transport
                wrapped = await self.loop.start_tls(plain, self, target.tls, server_hostname=target.host)
                if wrapped is None:
                    raise handshake.failed(target, "the proxy closed the tunnel during TLS")
                self._transport = wrapped

    async def _upgrade(self) -> None:
        key = frames.new_key()
        self._write(handshake.upgrade_request(self.target, key))
        head, rest = await self._response()
        if head.status != 101:
            raise handshake.refused(self.target, head, await self._body(head, rest))
        self.limit = handshake.check_upgrade(self.target, head, key)
        self._head = None
        if rest:
            self._received(rest)

    async def _response(self) -> tuple[handshake.Head, bytes]:
        assert self._head is not None
        while True:
            self._arrived.clear()
            try:
                parsed = handshake.parse_head(self._head)
            except ValueError as error:
                raise handshake.failed(self.target, str(error), retryable=False) from None
            if parsed is not None:
                return parsed
            if self._gone.is_set():
                raise handshake.hung_up(self.target) from self._cut or ConnectionResetError("closed before answering")
            await self._arrived.wait()

    async def _body(self, head: handshake.Head, body: bytes) -> bytes:
        """What can be had of a body within a second, to be quoted."""
        want = handshake.body_length(head)
        assert self._head is not None
        start = len(self._head) - len(body)
        with anyio.move_on_after(1.0):
            while len(self._head) - start < want and not self._gone.is_set():
                self._arrived.clear()
                await self._arrived.wait()
        return bytes(self._head[start:])

    # ------------------------------------------------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        if isinstance(sock, socket.socket) or hasattr(sock, "setsockopt"):
            tune(sock)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        """Called by the loop."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop."""
        self._heard = self.loop.time()
        if self._head is not None:
            self._head += self._view[:nbytes]
            self._arrived.set()
            return
        self._received(self._view[:nbytes])
        if nbytes == len(self._buffer) < _MAX_BUFFER:
            self._buffer = bytearray(len(self._buffer) * 4)
            self._view = memoryview(self._buffer)

    def eof_received(self) -> bool:
        """Called by the loop; the transport is to close itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._cut = exc
        if self._head is None and self.lost is None and exc is not None:
            self._rescue()
        self._lose(self._ended(f"the connection was cut ({exc})" if exc else "the connection was closed"))
        self._gone.set()
        self._arrived.set()

    def _rescue(self) -> None:
        """Read what the server said before it hung up; a failed write would have thrown it away."""
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or self.target.tls is not None:
            return
        try:
            while data := os.read(sock.fileno(), _START_BUFFER):
                self._received(data)
        except (OSError, ValueError):
            return

    # -------------------------------------------------------------------------------------------------- messages

    def _received(self, data: bytes | memoryview) -> None:
        try:
            messages = self._reader.feed(data)
        except frames.FrameError as error:
            self._close_code = error.code if error.code == frames.TOO_BIG else None
            self._lose(SessionLost(f"the server at {self.target.url} broke the protocol: {error.reason}"))
            return
        for opcode, payload in messages:
            if opcode == frames.PING:
                self._frame(frames.PONG, payload)
            elif opcode == frames.CLOSE:
                self._close_code, self._close_reason = frames.parse_close(payload)
                if self.lost is None:
                    self._frame(frames.CLOSE, payload[:2])
                self._lose(self._ended(""), abort=False)
                if self._transport is not None:
                    self._transport.close()
                return
            elif opcode != frames.PONG:
                waiter = self._waiter
                if waiter is None or waiter.done():
                    self._early.append((opcode, payload))
                else:
                    waiter.set_result((opcode, payload))

    async def exchange(self, payload: bytes, timeout: float | None) -> bytes:
        """See `Connection.exchange`."""
        async with self._lock:
            early = self._ready()
            if early is not None:
                return early
            self.check_size(len(payload))
            self._sent = len(payload)
            waiter = self._waiter = self.loop.create_future()
            self._frame(frames.TEXT, payload)
            self._timeout = timeout
            if timeout is not None:
                self._deadline = self.loop.time() + timeout
                timer = self._timer
                if timer is None or timer.when() > self._deadline:
                    self._schedule(self._deadline)
            try:
                got = await waiter
            except BaseException:
                self.abort("the call was cancelled before its reply came")
                raise
            finally:
                self._waiter = self._deadline = None
            if isinstance(got, ClientError):
                raise got
            return self._reply(*got)

    def _frame(self, opcode: int, payload: bytes) -> None:
        self._write(frames.encode_frame(opcode, payload, mask=True))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # ------------------------------------------------------------------------------------------ timers and the end

    def _schedule(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        """One timer for the deadline of the call and for pings: re-arming lazily costs a call nothing."""
        self._timer = None
        if self.lost is not None:
            return
        now = self.loop.time()
        due: list[float] = []
        overdue = False
        if self._deadline is not None:
            overdue = now >= self._deadline
            due.append(self._deadline)
        if self._ping_interval is not None:
            due.append(self._ping(now))
            overdue = overdue or due[-1] <= now
        if overdue and not self._late:
            self._late = True
            self._schedule(now + _LATE_S)
            return
        self._late = False
        if overdue and self._deadline is not None and now >= self._deadline:
            self._lose(self._timed_out(self._timeout))
        elif overdue:
            silence = now - self._heard
            self._lose(
                SessionLost(
                    f"the session with {self.target.url} ended: no answer to a ping, nothing heard for {silence:.1f} s",
                    hint="where pings cannot pass, set websocket_ping_interval_s=None; reset() begins a new session",
                )
            )
        elif due:
            self._schedule(min(due))

    def _ping(self, now: float) -> float:
        """Send a ping if it is time; returns when to look again, in the past when the server is taken for dead."""
        assert self._ping_interval is not None
        if self._pinged is not None:
            if self._heard >= self._pinged:
                self._pinged = None
            elif self.settings.ping_timeout is None:
                return now + self._ping_interval
            else:
                return self._pinged + self.settings.ping_timeout
        if now - self._heard >= self._ping_interval:
            self._pinged = now
            self._frame(frames.PING, b"")
            return now + (self.settings.ping_timeout or self._ping_interval)
        return self._heard + self._ping_interval

    def _lose(self, error: ClientError, *, abort: bool = True) -> None:
        if self.lost is None:
            self.lost = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if abort and self._transport is not None:
            self._transport.abort()

    def abort(self, reason: str) -> None:
        """See `Connection.abort`; also after the loop has ended."""
        error = SessionLost(f"the session with {self.target.url} ended: {reason}", hint="reset() begins a new session")
        if self.loop.is_closed():
            self.lost = self.lost or error
            self._drop()
        else:
            self._lose(error)

    def _drop(self) -> None:
        """Let go of the socket whatever the state."""
        if self._transport is None:
            return
        if not self.loop.is_closed():
            self._transport.abort()
            return
        sock = getattr(self._transport.get_extra_info("socket"), "_sock", None)
        if sock is not None:  # a transport whose loop has ended cannot close itself, and would warn of it
            sock.close()
            getattr(self._transport, "__dict__", {})["_sock"] = None
            self._transport = None

    async def close(self) -> None:
        """See `Connection.close`."""
        try:
            if self.lost is None:
                self._frame(frames.TEXT, CLOSE_MESSAGE)
                self._frame(frames.CLOSE, frames.close_payload(frames.NORMAL))
                self._lose(SessionLost("the session was closed by this client"), abort=False)
                with anyio.move_on_after(self.settings.close_timeout):
                    await self._gone.wait()
        finally:
            self._drop()
        # The loop closes an aborted socket in its next turn; whoever waits for close() may stop the loop then.
        with anyio.move_on_after(1.0):
            await self._gone.wait()
