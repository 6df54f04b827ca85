"""The seam between a client and its transport: one request, one reply, in order, on one session.

Two transports stand behind it: `AsyncConnection` on an event loop and `BlockingConnection` on a blocking socket. Both
are spoken to by coroutines; those of the blocking one never suspend, so a client written once drives either.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openenv_sandbox.errors import ClientError, MessageTooLarge, OpenEnvError, SessionLost, StepTimeout
from openenv_sandbox.wire import codec, frames, limits

if TYPE_CHECKING:
    from openenv_sandbox.client.target import Target

CLOSE_MESSAGE = b'{"type":"close"}'


@dataclass(frozen=True)
class Settings:
    """Timers and limits of a connection.

    Attributes:
        connect_timeout: From dialling to an open session, in seconds.
        message_timeout: Longest wait for one reply, in seconds; None waits as long as the session lives.
        max_size: Most bytes of one message from the server.
        ping_interval: Silence after which a ping is sent, in seconds; None sends none.
        ping_timeout: Silence after a ping that ends the session, in seconds; None never ends it.
        close_timeout: Longest wait for the server's part of the close, in seconds.
    """

    connect_timeout: float = 10.0
    message_timeout: float | None = 60.0
    max_size: int = limits.CLIENT_MAX
    ping_interval: float | None = 20.0
    ping_timeout: float | None = 20.0
    close_timeout: float = 3.0


class Connection(ABC):
    """An open session.

    Attributes:
        lost: Why the session is over; None while it lives.
        limit: Most bytes of one message the server takes, as it announced; None when it did not.
        pid: The process that opened it.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.settings = settings
        self.lost: ClientError | None = None
        self.limit: int | None = None
        self.pid = os.getpid()
        self._reader = frames.FrameReader(settings.max_size, False, skip_oversize=True)
        self._early: deque[tuple[int, bytes]] = deque()
        self._close_code: int | None = None
        self._close_reason = ""
        self._ping_interval = settings.ping_interval if target.ping and settings.ping_interval else None
        self._sent = 0

    @abstractmethod
    async def exchange(self, payload: bytes, timeout: float | None) -> bytes:
        """Send one message and return the reply.

        Raises:
            MessageTooLarge: The request or the reply is over a limit; the session lives on where ``lost`` is None.
            SessionLost: The session ended before or meanwhile.
            StepTimeout: No reply within ``timeout`` seconds; the session is closed.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the session politely, bounded by ``close_timeout``. May be called twice."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the session at once."""

    # ------------------------------------------------------------------------------------- shared by both transports

    def check_size(self, size: int) -> None:
        """Refuse a request over the limit that the server announced.

        Raises:
            MessageTooLarge: Nothing was sent; the session lives on.
        """
        if self.limit is not None and size > self.limit:
            text = limits.describe(size, self.limit, f"{limits.SERVER_SETTING} of the server")
            raise MessageTooLarge(f"{text} Nothing was sent.", outcome="failed")

    def _ready(self) -> bytes | None:
        """Before a request: what the server said on its own, which can only be why it ends the session.

        Raises:
            ClientError: The session is over.
        """
        if self._early:
            opcode, payload = self._early.popleft()
            if opcode != frames.OVERSIZE and _is_error(payload):
                return payload
            self.abort("the server sent a message that nobody asked for")
        if self.lost is not None:
            raise again(self.lost)
        return None

    def _reply(self, opcode: int, payload: bytes) -> bytes:
        if opcode == frames.OVERSIZE:
            text = limits.describe(int(payload), self.settings.max_size, f"{limits.CLIENT_SETTING} of the client")
            raise MessageTooLarge(f"{text} The server's reply was dropped; the session goes on.", outcome="unknown")
        return payload

    def _timed_out(self, timeout: float | None) -> StepTimeout:
        return StepTimeout(
            f"the server at {self.target.url} did not answer within {timeout:g} s; the session was closed so that a "
            "late reply cannot be taken for the answer to another call",
            hint="raise message_timeout_s (a launch: timeouts={'step': …}), or reset() to begin a new session",
        )

    def _ended(self, why: str) -> ClientError:
        """The error for a session that ended by itself."""
        code = self._close_code
        where = f"the session with {self.target.url} ended"
        if code == frames.TOO_BIG:
            reason = f" ({self._close_reason})" if self._close_reason else ""
            error: ClientError = MessageTooLarge(
                f"the server closed the session with 1009{reason}: a message of {self._sent} bytes is over its limit; "
                "servers run by uvicorn take 16777216 bytes unless UVICORN_WS_MAX_SIZE says otherwise, which those "
                "that call uvicorn.run() do not read",
                outcome="failed",
                hint="send less, or raise ws_max_size of the server; reset() begins a new session",
            )
            return error
        if code == frames.IDLE:
            why = "the server closed it because nobody used it (4408)"
        elif code is not None and code != frames.NO_STATUS:
            why = f"the server closed it with {code}" + (f": {self._close_reason}" if self._close_reason else "")
        elif code == frames.NO_STATUS:
            why = "the server closed it"
        return SessionLost(f"{where}: {why}", close_code=code, hint="reset() begins a new session")


def again(error: ClientError) -> ClientError:
    """What a later call on a lost session raises: always `SessionLost`, with the first reason.

    The session is gone, so this call had no effect.
    """
    code = error.close_code if isinstance(error, SessionLost) else None
    text = error.message if isinstance(error, SessionLost) else f"the session is over: {error.message}"
    return SessionLost(
        text,
        close_code=code,
        provider=error.provider,
        ref=error.ref,
        outcome="failed",
        hint="reset() begins a new session",
    )


def _is_error(payload: bytes) -> bool:
    try:
        message = codec.loads(payload)
    except ValueError:
        return False
    return isinstance(message, dict) and message.get("type") == "error"


def tune(sock: socket.socket) -> None:
    """No Nagle delay; keepalive probes that notice a dead peer within about a minute."""
    options = [(socket.IPPROTO_TCP, "TCP_NODELAY", 1), (socket.SOL_SOCKET, "SO_KEEPALIVE", 1)]
    options += [(socket.IPPROTO_TCP, name, value) for name, value in _KEEPALIVE]
    for level, name, value in options:
        option = getattr(socket, name, None)
        if option is not None:
            try:
                sock.setsockopt(level, option, value)
            except OSError:  # a socket that is not TCP, or a platform without the option
                continue


_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

__all__ = ["CLOSE_MESSAGE", "Connection", "OpenEnvError", "Settings", "again", "tune"]
