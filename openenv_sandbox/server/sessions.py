"""All sessions of a server: opening, attaching, closing, and how long they may be idle."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import FactoryError, ProtocolError
from openenv_sandbox.server.calls import Calls, environment_class, factory_name
from openenv_sandbox.server.session import Attachment, Session
from openenv_sandbox.server.slots import Seat, Slots
from openenv_sandbox.server.types import ConcurrencyConfig, ServerCapacityStatus, SessionInfo
from openenv_sandbox.server.worker import Worker, contain, settle
from openenv_sandbox.wire import frames, messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from openenv_sandbox.server.dispatch import Dispatcher

logger = logging.getLogger("openenv.server")

DETACHED_TIMEOUT = 3600.0
"""Seconds a session without a socket lives unused where no session_timeout is set."""

TEMPORARY = 32
"""Throw-away environments of plain HTTP requests at a time; more wait."""


class SessionManager:
    """Makes, finds and ends sessions.

    Args:
        factory: Makes one environment; runs in the session's thread.
        config: How many sessions, and for how long.
        dispatcher: Reads and writes their messages.
    """

    def __init__(self, factory: Callable[[], Any], config: ConcurrencyConfig, dispatcher: Dispatcher) -> None:
        self.config = config
        self.dispatcher = dispatcher
        self.sessions: dict[str, Session] = {}
        self.factory_name = factory_name(factory)
        self._ending: set[asyncio.Future[None]] = set()
        self._factory = factory
        self._slots = Slots(
            config.max_concurrent_envs, max_queued=config.max_queued, queue_timeout=config.queue_timeout
        )
        self._temporary = Slots(TEMPORARY, max_queued=1_000_000)
        cls = environment_class(factory)
        shared = getattr(cls, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)
        self._shared = Worker("openenv-environments") if shared else None
        self.mode: str | None = None

    @property
    def active_sessions(self) -> int:
        """Slots taken, those of sessions still under construction included."""
        return self._slots.taken

    def status(self) -> ServerCapacityStatus:
        """How full the server is."""
        slots = self._slots
        return ServerCapacityStatus(
            active_sessions=slots.taken,
            max_sessions=slots.capacity,
            abandoned_steps=slots.abandoned,
            queued=slots.queued,
        )

    def info(self, session_id: str) -> SessionInfo | None:
        """About one session; None when there is none of that id."""
        session = self.sessions.get(session_id)
        if session is None:
            return None
        return SessionInfo(
            session_id=session.id,
            created_at=session.created_at,
            last_activity_at=time.time() - (time.monotonic() - session.last_activity),
            step_count=session.step_count,
            environment_type=type(session.env).__name__,
            attached=session.attached is not None,
        )

    def get(self, session_id: str) -> Session:
        """The open session of that id.

        Raises:
            ProtocolError: There is none.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise ProtocolError(f"Unknown session_id: {session_id}", code=messages.SESSION_ERROR)
        return session

    async def open(self, attachment: Attachment | None = None) -> Session:
        """Build an environment in a session of its own; with an attachment it ends with that socket.

        Raises:
            CapacityError: No slot is free.
            FactoryError: The environment could not be built; its slot is free again.
        """
        session = await self._build(await self._slots.reserve())
        session.attached, session.by_socket = attachment, attachment is not None
        self.sessions[session.id] = session
        self._watch_idle(session)
        return session

    def attach(self, session_id: str, attachment: Attachment) -> Session:
        """Tie a socket to a session that is open and has none; the session survives the socket.

        Raises:
            ProtocolError: No such session, or another socket has it.
        """
        session = self.get(session_id)
        if session.attached is not None:
            text = f"Session {session_id} already has an attached WebSocket"
            raise ProtocolError(text, code=messages.SESSION_ERROR)
        session.attached = attachment
        session.last_activity = time.monotonic()
        return session

    def leave(self, session: Session, attachment: Attachment) -> None:
        """A socket is gone: end the session unless it was merely attached and nobody asked to close it."""
        if session.attached is not attachment:
            return
        session.attached = None
        session.cancel()
        session.last_activity = time.monotonic()
        if session.by_socket or session.close_asked:
            self.end(session)

    async def close_session(self, session_id: str) -> bool:
        """Close a session now, or when its socket leaves; says whether it is closed now.

        Raises:
            ProtocolError: No such session.
        """
        session = self.get(session_id)
        if session.attached is not None:
            session.close_asked = True
            return False
        await asyncio.shield(self.end(session))
        return True

    @asynccontextmanager
    async def temporary(self) -> AsyncIterator[Session]:
        """A throw-away environment outside the count of sessions, as plain HTTP requests use it."""
        session = await self._build(await self._temporary.reserve())
        try:
            yield session
        finally:
            await asyncio.shield(self.end(session))

    async def aclose(self) -> None:
        """End every session, waiting for their environments no longer than `Slots.CLOSING_GRACE` seconds."""
        for session in list(self.sessions.values()):
            if session.attached is not None:
                session.attached.close(frames.RESTART, "server is shutting down")
        for session in list(self.sessions.values()):
            self.end(session)
        loop = asyncio.get_running_loop()
        ending = {future for future in self._ending if future.get_loop() is loop}
        if ending:
            await asyncio.wait(ending, timeout=Slots.CLOSING_GRACE)

    def end(self, session: Session) -> asyncio.Future[None]:
        """Close a session's environment; the future is done when it is closed.

        An idle environment keeps its slot until it is closed, as the next one may need what it holds. One that is
        inside a step gives the slot up at once, as far as the bound on abandoned steps allows.
        """
        if session.closed is not None:
            return session.closed
        loop = asyncio.get_running_loop()
        closed = session.closed = loop.create_future()
        self._ending.add(closed)
        closed.add_done_callback(self._ending.discard)
        self.sessions.pop(session.id, None)
        if session.idle_timer is not None:
            session.idle_timer.cancel()
        session.cancel()
        if session.threads_busy:
            session.seat.abandon()
        else:
            session.seat.closing()
        late = loop.call_later(Slots.CLOSING_GRACE, session.seat.abandon)

        def done(_: Any, error: BaseException | None) -> None:
            late.cancel()
            if error is not None:
                logger.warning("closing a %s failed", type(session.env).__name__, exc_info=error)
            if session.worker is not self._shared:
                session.worker.stop()
            session.seat.free()
            closed.set_result(None)

        session.shut(done)
        return closed

    async def _build(self, seat: Seat) -> Session:
        worker = self._shared or Worker("openenv-environment")
        built: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(env: Any, error: BaseException | None) -> None:
            if not built.cancelled():
                if error is None:
                    built.set_result(env)
                else:
                    built.set_exception(contain(error))
            elif error is None:  # nobody waits any more; what came all the same must be closed
                self._put_away(env, worker, seat)
            else:
                self._drop(worker, seat)

        try:
            worker.submit(self._factory, done)
            made = await built
            env = await settle(lambda: made)
            session = self._session(env, worker, seat)
        except asyncio.CancelledError:
            if built.done() and not built.cancelled() and built.exception() is None:
                self._put_away(built.result(), worker, seat)
            else:
                seat.abandon()
            raise
        except Exception as error:
            self._drop(worker, seat)
            logger.error("environment factory %s failed", self.factory_name, exc_info=error)
            raise FactoryError(
                f"Environment factory '{self.factory_name}' failed to create instance.",
                code=messages.FACTORY_ERROR,
                data={"factory_name": self.factory_name},
            ) from error
        if self.config.max_concurrent_envs > 1 and not getattr(env, "SUPPORTS_CONCURRENT_SESSIONS", False):
            self.end(session)
            raise ProtocolError(not_concurrent(type(env).__name__, self.config), code=messages.SESSION_ERROR)
        return session

    def _session(self, env: Any, worker: Worker, seat: Seat) -> Session:
        if getattr(type(env), "_mode", self) is None and env._mode is None:  # its tools depend on the mode
            env._mode = self.mode
        session = Session(Calls(env), worker, self.dispatcher, seat)
        session.closer = self.end
        return session

    def _put_away(self, env: Any, worker: Worker, seat: Seat) -> None:
        """Close what a factory made and nobody waits for any more."""
        if inspect.iscoroutine(env):
            env.close()
        try:
            session = self._session(env, worker, seat)
        except Exception:  # no environment: the coroutine of an asynchronous factory, or something else
            self._drop(worker, seat)
        else:
            self.end(session)

    def _drop(self, worker: Worker, seat: Seat) -> None:
        if worker is not self._shared:
            worker.stop()
        seat.free()

    def _watch_idle(self, session: Session) -> None:
        timeout = self.config.session_timeout
        spared = timeout is None and session.attached is not None
        if timeout is None:
            if session.by_socket:
                return
            timeout = DETACHED_TIMEOUT
        left = session.last_activity + timeout - time.monotonic()
        if left > 0 or session.busy or spared:
            loop = asyncio.get_running_loop()
            session.idle_timer = loop.call_later(left if left > 0 else timeout, self._watch_idle, session)
            return
        logger.info("session %s closed after %g s without a message", session.id, timeout)
        if session.attached is not None:
            session.attached.close(frames.IDLE, f"no message for {timeout:g} s")
        self.end(session)


def not_concurrent(name: str, config: ConcurrencyConfig) -> str:
    """Why a class may not have that many sessions."""
    return (
        f"{name} does not declare SUPPORTS_CONCURRENT_SESSIONS = True, so max_concurrent_envs="
        f"{config.max_concurrent_envs} is refused; set the flag on the class if its instances share nothing."
    )
