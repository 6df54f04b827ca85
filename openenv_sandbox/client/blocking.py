"""The blocking transport: a plain socket in whatever thread calls, no event loop anywhere near a step.

Its coroutines never suspend. Between calls one daemon thread per process looks after all idle sessions: it answers the
server's pings, sends ours, and notices a dead server, so that a model may think for minutes between two steps.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

from openenv_sandbox.client import handshake
from openenv_sandbox.client.connection import CLOSE_MESSAGE, Connection, Settings, tune
from openenv_sandbox.client.keeper import keeper
from openenv_sandbox.errors import ClientError, ConnectError, SessionLost
from openenv_sandbox.wire import frames

if TYPE_CHECKING:
    from openenv_sandbox.client.target import Target

_CHUNK = 256 * 1024


class BlockingConnection(Connection):
    """A session on a blocking socket; use `open`. Any thread may use it, one at a time."""

    def __init__(self, target: Target, settings: Settings) -> None:
        super().__init__(target, settings)
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()
        self._buffer = bytearray(_CHUNK)
        self._view = memoryview(self._buffer)
        self._socket_timeout: float | None = -1.0
        self._heard = self._used = time.monotonic()
        self._pinged: float | None = None
        self._messages: list[tuple[int, bytes]] = []
        self._poll: select.poll | None = None

    # -------------------------------------------------------------------------------------------------- opening

    @classmethod
    async def open(cls, target: Target, settings: Settings) -> BlockingConnection:
        """Dial, upgrade, and return the open session; blocks.

        Raises:
            ConnectError: Nothing answered, or something else than an environment server.
        """
        self = cls(target, settings)
        deadline = time.monotonic() + settings.connect_timeout
        try:
            self._dial(deadline)
            self._upgrade(deadline)
        except TimeoutError:
            self._shut()
            raise handshake.failed(target, f"no answer within {settings.connect_timeout:g} s") from None
        except ssl.SSLError as error:
            self._shut()
            raise handshake.failed(target, f"TLS failed: {error}", retryable=False) from error
        except OSError as error:
            self._shut()
            if isinstance(error, ConnectError):
                raise
            raise handshake.failed(target, handshake.os_reason(error)) from error
        except BaseException:
            self._shut()
            raise
        keeper.add(self)
        return self

    def _dial(self, deadline: float) -> None:
        target = self.target
        for last, host in target.dial_hosts():
            try:
                self._sock = _connect((host, target.dial[1]), deadline)
                break
            except OSError:
                if last:
                    raise
        assert self._sock is not None
        tune(self._sock)
        if target.proxy is not None:
            head, rest = self._ask(handshake.connect_request(target), deadline)
            if head.status != 200:
                raise handshake.refused(target, head, self._body(head, rest), by_proxy=True)
        if target.tls is not None:
            self._sock.settimeout(_left(deadline))
            self._sock = target.tls.wrap_socket(self._sock, server_hostname=target.host)

    def _upgrade(self, deadline: float) -> None:
        key = frames.new_key()
        head, rest = self._ask(handshake.upgrade_request(self.target, key), deadline)
        if head.status != 101:
            raise handshake.refused(self.target, head, self._body(head, rest))
        self.limit = handshake.check_upgrade(self.target, head, key)
        self._heard = self._used = time.monotonic()
        if hasattr(select, "poll") and self._sock is not None:
            self._poll = select.poll()
            self._poll.register(self._sock, select.POLLIN)
        if rest:
            self._take(rest)

    def _ask(self, request: bytes, deadline: float) -> tuple[handshake.Head, bytes]:
        assert self._sock is not None
        self._sock.settimeout(_left(deadline))
        self._sock.sendall(request)
        data = bytearray()
        while True:
            self._sock.settimeout(_left(deadline))
            chunk = self._sock.recv(8192)
            data += chunk
            try:
                parsed = handshake.parse_head(data)
            except ValueError as error:
                raise handshake.failed(self.target, str(error), retryable=False) from None
            if parsed is not None:
                return parsed
            if not chunk:
                raise handshake.hung_up(self.target) from ConnectionResetError("closed before answering")

    def _body(self, head: handshake.Head, body: bytes) -> bytes:
        assert self._sock is not None
        want = handshake.body_length(head)
        deadline = time.monotonic() + 1.0
        try:
            while len(body) < want:
                self._sock.settimeout(_left(deadline))
                chunk = self._sock.recv(4096)
                if not chunk:
                    break
                body += chunk
        except OSError:
            return body
        return body

    # -------------------------------------------------------------------------------------------------- messages

    async def exchange(self, payload: bytes, timeout: float | None) -> bytes:
        """See `Connection.exchange`; blocks the calling thread."""
        with self._lock:
            now = time.monotonic()
            if self._readable():  # a ping, a close, or what nobody asked for
                self._look()
            early = self._ready()
            if early is not None:
                return early
            self.check_size(len(payload))
            self._sent = len(payload)
            try:
                return self._reply(*self._exchange(payload, None if timeout is None else now + timeout, timeout))
            except ClientError:
                raise
            except BaseException:
                self._lose("the call was interrupted before its reply came")
                raise
            finally:
                self._used = time.monotonic()

    def _exchange(self, payload: bytes, deadline: float | None, timeout: float | None) -> tuple[int, bytes]:
        frame = frames.encode_frame(frames.TEXT, payload, mask=True)
        self._pinged = None
        try:
            self._wait_at_most(timeout, first=True)
            assert self._sock is not None
            self._sock.sendall(frame)
        except TimeoutError:
            raise self._over(self._timed_out(timeout)) from None
        except OSError as error:
            # The server may have said why before it hung up.
            self._look(cut=error)
        while True:
            if self._messages:
                return self._messages.pop(0)
            if self._early:
                return self._early.popleft()
            if self.lost is not None:
                raise self.lost
            try:
                assert self._sock is not None
                count = self._sock.recv_into(self._buffer)
            except (TimeoutError, ssl.SSLWantReadError):
                self._patience(deadline, timeout)
                continue
            except OSError as error:
                self._lose(f"the connection was cut ({error})", ended=True)
                continue
            if not count:
                self._lose("the connection was closed", ended=True)
                continue
            self._heard = time.monotonic()
            self._take(self._view[:count], waiting=True)

    def _patience(self, deadline: float | None, timeout: float | None) -> None:
        """A receive came back empty: the call is over time, or a ping is due, or the server is dead."""
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            raise self._over(self._timed_out(timeout))
        self._heartbeat(now)
        if self.lost is None:
            self._wait_at_most(None if deadline is None else deadline - now)

    def _heartbeat(self, now: float) -> None:
        if self._ping_interval is None:
            return
        wait = self.settings.ping_timeout
        if self._pinged is not None and self._heard >= self._pinged:
            self._pinged = None
        if self._pinged is not None:
            if wait is not None and now - self._pinged >= wait:
                self._lose(f"no answer to a ping, nothing heard for {now - self._heard:.1f} s", ended=True)
        elif now - self._heard >= self._ping_interval and now - self._used >= self._ping_interval:
            self._pinged = now
            self._frame(frames.PING, b"")

    def _wait_at_most(self, left: float | None, *, first: bool = False) -> None:
        """Set the socket's timeout; unchanged in the ordinary case, since each change is a system call."""
        parts = [left] if left is not None else []
        if self._ping_interval is not None:
            parts.append(self._ping_interval)
            if self.settings.ping_timeout is not None and not first:
                parts.append(self.settings.ping_timeout)
        wait = max(min(parts), 0.001) if parts else None
        if wait != self._socket_timeout and self._sock is not None:
            self._sock.settimeout(wait)
            self._socket_timeout = wait

    def _readable(self) -> bool:
        sock = self._sock
        if sock is None:
            return False
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return True
        return bool(self._poll.poll(0) if self._poll is not None else select.select((sock,), (), (), 0)[0])

    def _look(self, cut: OSError | None = None) -> None:
        """Take what lies in the socket, without waiting."""
        sock = self._sock
        if sock is None:
            return
        try:
            while self.lost is None:
                sock.settimeout(0)  # each time: answering a ping changes it
                self._socket_timeout = 0.0
                count = sock.recv_into(self._buffer)
                if not count:
                    self._lose("the connection was closed", ended=True)
                    return
                self._heard = time.monotonic()
                self._take(self._view[:count])
        except (BlockingIOError, ssl.SSLWantReadError):
            if cut is not None:
                self._lose(f"the connection was cut ({cut})", ended=True)
        except (OSError, ValueError) as error:
            self._lose(f"the connection was cut ({cut or error})", ended=True)

    def _take(self, data: bytes | memoryview, *, waiting: bool = False) -> None:
        try:
            messages = self._reader.feed(data)
        except frames.FrameError as error:
            self._lose(f"the server broke the protocol: {error.reason}")
            return
        for opcode, payload in messages:
            if opcode == frames.PING:
                self._frame(frames.PONG, payload)
            elif opcode == frames.CLOSE:
                self._close_code, self._close_reason = frames.parse_close(payload)
                self._frame(frames.CLOSE, payload[:2])
                self._lose("", ended=True)
                return
            elif opcode != frames.PONG:
                if waiting and not self._messages:
                    self._messages.append((opcode, payload))
                else:
                    self._early.append((opcode, payload))

    def _frame(self, opcode: int, payload: bytes) -> None:
        """Send a small frame besides a call; a failure shows at the next receive."""
        if self._sock is None:
            return
        try:
            self._sock.settimeout(1.0)
            self._socket_timeout = 1.0
            self._sock.sendall(frames.encode_frame(opcode, payload, mask=True))
        except (OSError, ValueError):
            return

    # --------------------------------------------------------------------------------------------------- the end

    def _over(self, error: ClientError) -> ClientError:
        if self.lost is None:
            self.lost = error
        self._shut()
        return error

    def _lose(self, reason: str, *, ended: bool = False) -> None:
        if ended:
            self._over(self._ended(reason))
        else:
            text = f"the session with {self.target.url} ended: {reason}"
            self._over(SessionLost(text, hint="reset() begins a new session"))

    def _shut(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        keeper.remove(self)

    def abort(self, reason: str) -> None:
        """See `Connection.abort`."""
        self._lose(reason)

    async def close(self) -> None:
        """See `Connection.close`; blocks, bounded."""
        with self._lock:
            if self.lost is not None or self._sock is None:
                self._shut()
                return
            deadline = time.monotonic() + self.settings.close_timeout
            try:
                self._frame(frames.TEXT, CLOSE_MESSAGE)
                self._frame(frames.CLOSE, frames.close_payload(frames.NORMAL))
                self.lost = SessionLost("the session was closed by this client")
                while True:
                    self._sock.settimeout(_left(deadline))
                    if not self._sock.recv_into(self._buffer):
                        break
            except (OSError, ValueError):
                return
            finally:
                self._shut()

    def look_after(self, now: float, readable: bool) -> None:
        """Called by the keeper while nobody else uses the session."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.lost is None:
                if readable:
                    self._look()
                if self.lost is None:
                    self._heartbeat(now)
        finally:
            self._lock.release()

    def fileno(self) -> int:
        """The socket's descriptor, -1 when there is none."""
        sock = self._sock
        return sock.fileno() if sock is not None else -1


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connect(dial: tuple[str, int], deadline: float) -> socket.socket:
    """A connected socket: every address of the name is tried, none eats the time of the rest."""
    addresses = socket.getaddrinfo(dial[0], dial[1], type=socket.SOCK_STREAM)
    first: OSError | None = None
    for index, (family, kind, proto, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(_left(deadline) / (len(addresses) - index))
            sock.connect(address)
        except OSError as error:
            sock.close()
            first = first or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise first or OSError(f"no address for {dial[0]}")
