"""Sending an answer from the thread that made it.

The event loop reads; the session's thread writes its answer into the socket itself and does not wake the loop, which
would cost more than a small step. Nothing is ever interleaved: all writes hold one lock, the thread sends only while
the loop has nothing buffered, and what the socket does not take at once goes out through the loop before anything else.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.worker import deliver
from openenv_sandbox.wire import frames

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable


class DirectSending:
    """Mixed into a connection: everything is written by `_write`, and `_direct` offers the short way."""

    _transport: asyncio.Transport
    _loop: asyncio.AbstractEventLoop
    _close_sent: bool
    _busy: bool
    _waiting: deque[tuple[int, bytes | str]]
    _next: Callable[[], None]

    def _open_direct(self, transport: asyncio.Transport) -> None:
        self._lock = threading.RLock()
        self._rest: list[bytes | memoryview] = []
        self._clear = False
        self._socket: socket.socket | None = None
        original: Any = transport.get_extra_info("socket")
        if original is not None and hasattr(socket, "MSG_DONTWAIT"):
            # A descriptor of our own: the loop may close its one while the thread is about to send.
            self._socket = socket.socket(fileno=os.dup(original.fileno()))

    def _close_direct(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _write(self, *parts: bytes) -> None:
        """Write from the event loop."""
        with self._lock:
            self._flush()
            # Large parts one by one: two writes cost less than joining them.
            if len(parts) == 1 or len(parts[-1]) > 65536:
                for part in parts:
                    self._transport.write(part)
            else:
                self._transport.write(b"".join(parts))
            self._clear = False

    def _flush(self) -> None:
        for part in self._rest:
            self._transport.write(part)
        self._rest.clear()

    def _direct(self) -> Callable[[bytes], bool] | None:
        with self._lock:
            self._clear = not self._rest and not self._transport.get_write_buffer_size()
        return self._send_direct if self._clear and self._socket is not None else None

    def _send_direct(self, frame: bytes) -> bool:
        """Send in the session's thread; False leaves the answer to the event loop."""
        head = frames.header(frames.TEXT, len(frame), masked=False)
        with self._lock:
            if not self._clear or self._close_sent or self._socket is None:
                return False
            # From here on the loop may hand out the next message: its answer queues behind this lock or this rest.
            self._busy = False
            try:
                sent = self._socket.sendmsg((head, frame), (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:  # the peer is gone, which the loop does not see by itself while it has paused reading
                deliver(self._loop, self._transport.abort)
                return True
            complete = sent == len(head) + len(frame)
            if not complete:
                self._clear = False
                self._rest = [head[sent:], memoryview(frame)[max(0, sent - len(head)) :]]
        if not complete or self._waiting:
            deliver(self._loop, self._continue)
        return True

    def _continue(self) -> None:
        with self._lock:
            if self._rest and not self._transport.is_closing():
                self._flush()
        self._next()
