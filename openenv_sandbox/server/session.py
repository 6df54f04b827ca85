"""One session: an environment, the thread it lives in, and how messages reach it."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from openenv_sandbox.server.dispatch import Dispatcher, Request, failure
from openenv_sandbox.server.worker import deliver, settle
from openenv_sandbox.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from openenv_sandbox.models import Observation
    from openenv_sandbox.server.calls import Calls, Method
    from openenv_sandbox.server.slots import Seat
    from openenv_sandbox.server.worker import Worker

T = TypeVar("T")

Outcome = bytes | Request
"""Bytes are to be sent; a request is for the connection: JSON-RPC, close, or a frame after which it ends."""

LARGE = 256 * 1024
"""Bytes from which on JSON is made and read off the event loop."""


class Attachment(Protocol):
    """What a session knows about its socket."""

    def close(self, code: int, reason: str) -> None:
        """End the connection."""


class Session:
    """An environment and everything that may be asked of it.

    Made by `SessionManager`; all methods belong on an event loop.

    Attributes:
        id: Names the session; whoever knows it may attach to it.
        env: The environment.
        step_count: Steps taken.
    """

    def __init__(self, calls: Calls, worker: Worker, dispatcher: Dispatcher, seat: Seat) -> None:
        self.id = str(uuid.uuid4())
        self.env: Any = calls.env
        self.step_count = 0
        self.created_at = time.time()
        self.last_activity = time.monotonic()
        self.calls = calls
        self.worker = worker
        self.seat = seat
        self.attached: Attachment | None = None
        self.by_socket = False
        self.close_asked = False
        self.closed: asyncio.Future[None] | None = None
        self._calls_running = 0
        self._answering = False
        self.idle_timer: asyncio.TimerHandle | None = None
        self.closer: Callable[[Session], asyncio.Future[None]] | None = None
        self._dispatcher = dispatcher
        self._lock = asyncio.Lock()
        self._inline: asyncio.Task[Any] | None = None
        self._large_answers = False

    # -- what callers inside the server use ---------------------------------------------------------------------

    async def reset(self, kwargs: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode; keywords that the environment does not take are left out."""
        result: Observation = await self._invoke(self.calls.reset, (), kwargs)
        return result

    async def step(self, action: Any, kwargs: Mapping[str, Any] | None = None) -> Observation:
        """Take one action, which is validated already."""
        self.step_count += 1
        result: Observation = await self._invoke(self.calls.step, (action,), kwargs)
        return result

    async def state(self) -> Any:
        """The environment's state; whatever reading it raises is raised here."""
        return await self._state()

    async def call(self, function: Callable[[Any], Any]) -> Any:
        """Run ``function(env)`` where the environment's methods run, and await its result where it is a coroutine.

        That is the session's thread, or the event loop for an environment whose steps run there.
        """
        call = partial(function, self.env)
        if self.calls.step.inline:
            async with self._lock:
                return await self._settle(call)
        result = await self._in_thread(call)
        return await settle(lambda: result)

    async def close(self) -> None:
        """Close the environment and free its slot; returns when it is closed."""
        if self.closer is not None:
            await asyncio.shield(self.closer(self))

    # -- the way of messages ------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a call is running or waits to run."""
        return self._calls_running > 0 or self._answering

    def submit(
        self,
        payload: bytes | str,
        done: Callable[[Outcome], None],
        direct: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Answer one message, the only one under way; ``done`` gets the outcome on this loop, at once or later.

        Args:
            payload: The message.
            done: Gets the outcome.
            direct: Called in the session's thread with the answer; if it returns True it has dealt with it, and the
                event loop is not woken.
        """
        if self.calls.threaded:
            self._answering = True
            loop = asyncio.get_running_loop()
            self.worker.post(partial(self._answer_in_thread, payload, done, direct, loop))
        elif self.calls.step.asynchronous or self.calls.reset.asynchronous or len(payload) > LARGE:
            self._calls_running += 1
            self._inline = start(self._respond_inline(payload))
            self._inline.add_done_callback(partial(self._inline_done, done))
        else:
            self.last_activity = time.monotonic()
            done(self._respond(payload))

    def cancel(self) -> None:
        """Give up what runs on the event loop; a thread cannot be given up."""
        if self._inline is not None:
            self._inline.cancel()

    @property
    def threads_busy(self) -> bool:
        """Whether something runs that cannot be cancelled."""
        return self.busy and not (self.calls.step.inline and self.calls.reset.inline)

    def shut(self, done: Callable[[Any, BaseException | None], None]) -> None:
        """Close the environment where it lives, after what runs there."""
        close = self.calls.close
        if self.calls.blocking and not inspect.iscoroutinefunction(getattr(self.env, "close", None)):
            self.worker.submit(close, done)
            return

        def ended(task: asyncio.Task[Any]) -> None:
            done(None, None if task.cancelled() else task.exception())

        start(self._shut()).add_done_callback(ended)

    async def _shut(self) -> None:
        async with self._lock:
            await settle(self.calls.close)

    def _respond(self, payload: bytes | str) -> Outcome:
        """Decode, call and encode in one go, wherever this is called."""
        request = self._dispatcher.decode(payload)
        kind, value = request
        try:
            if kind == messages.STEP:
                self.step_count += 1
                result = self.calls.step(value)
            elif kind == messages.RESET:
                result = self.calls.reset(kwargs=value)
            elif kind == messages.STATE:
                result = self.calls.state()
            else:
                return request
        except BaseException as error:  # SystemExit of a step is the step's failure, not the server's
            return self._dispatcher.error(failure(error))
        return self._dispatcher.encode(kind, result)

    async def _respond_inline(self, payload: bytes | str) -> Outcome:
        decode = self._dispatcher.decode
        request = await asyncio.to_thread(decode, payload) if len(payload) > LARGE else decode(payload)
        kind, value = request
        try:
            if kind == messages.STEP:
                self.step_count += 1
                result = await self._invoke(self.calls.step, (value,), None)
            elif kind == messages.RESET:
                result = await self._invoke(self.calls.reset, (), value)
            elif kind == messages.STATE:
                result = await self._state()
            else:
                return request
        except Exception as error:
            return self._dispatcher.error(failure(error))
        encode = self._dispatcher.encode
        frame = await asyncio.to_thread(encode, kind, result) if self._large_answers else encode(kind, result)
        self._large_answers = len(frame) > LARGE
        return frame

    def _answer_in_thread(
        self,
        payload: bytes | str,
        done: Callable[[Outcome], None],
        direct: Callable[[bytes], bool] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        try:
            outcome = self._respond(payload)
        except BaseException as error:  # nothing may end the thread
            outcome = self._dispatcher.error(failure(error))
        self.last_activity = time.monotonic()
        self._answering = False
        if direct is None or type(outcome) is not bytes or not direct(outcome):
            deliver(loop, done, outcome)

    def _inline_done(self, done: Callable[[Outcome], None], task: asyncio.Task[Outcome]) -> None:
        self._inline = None
        self._left()
        # Cancelled by us: nobody listens any more. By the environment itself: its client must hear of it.
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        done(task.result() if error is None else self._dispatcher.error(failure(error)))

    async def _invoke(self, method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
        call = partial(method, *args, kwargs=kwargs)
        if not method.inline:
            return await self._in_thread(call)
        async with self._lock:
            return await self._settle(call)

    async def _state(self) -> Any:
        if self.calls.state_inline:
            return await self._settle(self.calls.state)
        return await self._in_thread(self.calls.state)

    async def _settle(self, call: Callable[[], Any]) -> Any:
        self._calls_running += 1
        try:
            return await settle(call)
        finally:
            self._left()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run in the session's thread; the session stays busy until the call is over, whoever gives up waiting."""
        self._calls_running += 1

        def counted() -> T:
            try:
                return call()
            finally:
                # Posted before the result, so that the session is free when the caller goes on.
                deliver(loop, self._left)

        loop = asyncio.get_running_loop()
        return await self.worker.run(counted)

    def _left(self) -> None:
        self._calls_running -= 1
        self.last_activity = time.monotonic()


if sys.version_info >= (3, 12):

    def start(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that begins at once, which saves a round of the loop for a coroutine that never waits."""
        return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), eager_start=True)

else:

    def start(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task for the coroutine."""
        return asyncio.get_running_loop().create_task(coroutine)
