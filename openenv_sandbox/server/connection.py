"""One WebSocket of a session: order, back-pressure and the end of it, whatever carries the frames."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.context import SessionContext
from openenv_sandbox.server.dispatch import END, FAIL, failure, refusal
from openenv_sandbox.wire import codec, frames, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.server.session import Outcome, Session
    from openenv_sandbox.server.sessions import SessionManager

logger = logging.getLogger("openenv.server")

Item = tuple[int, bytes | str]
"""Opcode and payload of a message."""


class Connection(ABC):
    """Answers the messages of one socket in the order in which they came.

    A subclass feeds `received`, `lost` and `writable`, and implements `_send` and `_end`.

    Args:
        manager: The sessions of the server.
        session_id: The session to attach to; None opens one.
        raw_rpc: Messages are bare JSON-RPC instead of those of ``/ws``.
    """

    MAX_WAITING = 256
    MAX_WAITING_BYTES = 8 * 1024 * 1024
    """Reading pauses while more than this waits to be answered."""

    def __init__(self, manager: SessionManager, *, session_id: str | None = None, raw_rpc: bool = False) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._manager = manager
        self._session_id = session_id
        self._raw_rpc = raw_rpc
        self._session: Session | None = None
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._looping = False
        self._writable = True
        self._paused = False
        self._rpc: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Open or attach to the session, answer until the socket or the session ends, then leave the session."""
        try:
            session = self._session = await self._open()
            if session is None:
                return
            try:
                self._next()
                await self.ended
            finally:
                if self._rpc is not None:
                    self._rpc.cancel()
                self._manager.leave(session, self)
        finally:
            self._finished()

    async def _open(self) -> Session | None:
        try:
            if self._session_id is not None:
                return self._manager.attach(self._session_id, self)
            opening = asyncio.ensure_future(self._manager.open(self))
            try:
                await asyncio.wait((opening, self.ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not opening.done():
                    opening.cancel()
            if self.ended.done():  # the client left while the environment was being built
                self._discard(opening)
                return None
            return opening.result()
        except Exception as error:
            self._send(codec.dumps(refusal(error)))
            self.close(frames.NORMAL, "")
            return None

    def _discard(self, opening: asyncio.Future[Session]) -> None:
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            self._manager.leave(opening.result(), self)

    # -- what the carrier tells ---------------------------------------------------------------------------------

    def received(self, opcode: int, payload: bytes | str) -> None:
        """A whole message came."""
        if self.ended.done():
            return
        self._waiting.append((opcode, payload))
        self._waiting_bytes += len(payload)
        if not self._busy:
            self._next()
        if self._waiting and not self._paused and self._over_bounds():
            self._paused = True
            self._pause_reading()

    def writable(self, yes: bool) -> None:
        """Whether more may be sent now."""
        self._writable = yes
        if yes and not self._busy:
            self._next()

    def lost(self) -> None:
        """The socket is gone."""
        if not self.ended.done():
            self.ended.set_result(None)
        self._waiting.clear()

    def close(self, code: int, reason: str) -> None:
        """End the connection from this side; what was sent before still arrives."""
        if not self.ended.done():
            self._end(code, reason)
            self.lost()

    # -- what the carrier does ----------------------------------------------------------------------------------

    @abstractmethod
    def _send(self, frame: bytes) -> None:
        """Send one text message; it may queue."""

    @abstractmethod
    def _end(self, code: int, reason: str) -> None:
        """Send a close frame."""

    def _direct(self) -> Callable[[bytes], bool] | None:
        """How the session's thread may send the next answer by itself; None when it may not."""
        return None

    def _pause_reading(self) -> None:
        """Stop taking messages, where the carrier can."""

    def _resume_reading(self) -> None:
        """Take messages again."""

    def _finished(self) -> None:
        """Nothing more will be sent."""

    # -- the order of things ------------------------------------------------------------------------------------

    def _over_bounds(self) -> bool:
        return len(self._waiting) > self.MAX_WAITING or self._waiting_bytes > self.MAX_WAITING_BYTES

    def _next(self) -> None:
        session = self._session
        if session is None or self._looping:
            return
        # A loop and not recursion, as an environment that runs inline answers before submit returns.
        self._looping = True
        while self._waiting and self._writable and not self._busy and not self.ended.done():
            opcode, payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            self._busy = True
            if opcode != frames.TEXT:
                self._unusual(opcode, payload)
            elif self._raw_rpc:
                self._start_rpc(payload, session)
            else:
                session.submit(payload, self._answered, self._direct())
        self._looping = False
        if self._paused and not self._over_bounds():
            self._paused = False
            self._resume_reading()

    def _unusual(self, opcode: int, payload: bytes | str) -> None:
        if opcode == frames.OVERSIZE:
            self._answered((FAIL, self._manager.dispatcher.too_large(int(payload))))
        else:
            self._answered((END, messages.error(messages.SESSION_ERROR, "'text'")))

    def _answered(self, outcome: Outcome) -> None:
        if self.ended.done():
            return
        if isinstance(outcome, bytes):
            self._busy = False
            self._send(outcome)
        else:
            kind, value = outcome
            if kind == messages.MCP:
                self._start_rpc(value, None)
                return
            self._busy = False
            if kind == messages.CLOSE:
                self.close(frames.NORMAL, "")
                return
            self._send(self._manager.dispatcher.error(value))
            if kind == END:
                self.close(frames.NORMAL, "")
                return
        if self._waiting:
            self._next()

    def _start_rpc(self, request: Any, raw: Session | None) -> None:
        self._rpc = asyncio.get_running_loop().create_task(self._answer_rpc(request, raw is not None))

    async def _answer_rpc(self, request: Any, raw: bool) -> None:
        from openenv_sandbox.server import mcp

        context = SessionContext(self._manager, self._session)
        try:
            if raw:
                frame = await mcp.answer_frame(request, context)
            else:
                response = await mcp.handle_rpc(request, context)
                frame = codec.dumps({"type": messages.MCP, "data": response})
        except (Exception, asyncio.CancelledError) as error:  # a result that has no wire form, a tool that gave up
            if self.ended.done():
                raise
            frame = self._manager.dispatcher.error(failure(error))
        if len(frame) > self._manager.dispatcher.max_message:
            frame = codec.dumps(self._manager.dispatcher.too_large(len(frame)))
        self._answered(frame)
