"""The few ways work outlives, or is outlived by, the code that started it.

`finish` is the only way cleanup is awaited; `daemon_call` and `CountedThreads` are the only ways synchronous SDK calls
are made.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# The loop holds tasks weakly: without these a cleanup nobody awaits any more could be collected half way.
_KEPT: set[asyncio.Task[Any]] = set()

UNDO_S = 60.0
"""Longest wait for the end of what was begun for a caller that has left, in seconds."""


@dataclass(frozen=True)
class Finished(Generic[T]):
    """How far a coroutine given to `finish` came.

    Attributes:
        done: It ended within the time; otherwise it goes on in the background.
        value: What it returned.
        error: What it raised.
        task: The task that runs it.
    """

    done: bool
    value: T | None
    error: BaseException | None
    task: asyncio.Task[T]


def keep(coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Run ``coro`` in a task of its own that is not collected before it ended.

    Its error, if nobody asks for it, is not reported by the loop: whoever keeps a task handles its outcome.
    """
    task = asyncio.get_running_loop().create_task(coro, name=name)
    _KEPT.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[Any]) -> None:
    _KEPT.discard(task)
    if not task.cancelled():
        task.exception()


async def finish(coro: Coroutine[Any, Any, T], *, timeout: float) -> Finished[T]:
    """Run ``coro`` to its end, or for ``timeout`` seconds, whatever happens to the caller meanwhile.

    Survives cancellation of the calling task, once or repeatedly, of a surrounding anyio scope, ``asyncio.timeout`` and
    task group. Never raises what ``coro`` raised. A cancellation that arrives meanwhile is not lost: it is delivered at
    the caller's next await, so the error that is being handled stays the one that is seen.

    Args:
        coro: The cleanup.
        timeout: Seconds to wait for it; past that it goes on in the background.
    """
    task = keep(coro, name="openenv-cleanup")
    await _settle(task, timeout)
    if not task.done():
        return Finished(False, None, None, task)
    if task.cancelled():
        return Finished(True, None, asyncio.CancelledError(), task)
    error = task.exception()
    return Finished(True, None if error else task.result(), error, task)


async def _settle(task: asyncio.Task[Any], timeout: float) -> None:
    import anyio

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    pierced: asyncio.CancelledError | None = None
    # A cancelled anyio scope cancels again in every turn of the loop; the shield stops that. A native cancel goes
    # through the shield; the loop stops that.
    with anyio.CancelScope(shield=True):
        while not task.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait({task}, timeout=left)
            except asyncio.CancelledError as error:
                pierced = error
    if pierced is not None and not _from_scope(pierced):
        _cancel_again(pierced)


def _from_scope(error: asyncio.CancelledError) -> bool:
    """Whether an anyio scope cancelled, which does so again by itself."""
    text = str(error.args[0]) if error.args else ""
    return text.startswith(("Cancelled by cancel scope", "Cancelled via cancel scope"))


def _cancel_again(error: asyncio.CancelledError) -> None:
    task: Any = asyncio.current_task()
    if task is None:
        return
    if hasattr(task, "uncancel"):  # 3.11: keep the count that asyncio.timeout and TaskGroup compare
        task.uncancel()
    task.cancel(*error.args)


async def in_thread(fn: Callable[..., T], *args: Any, undo: Callable[[], object] | None = None) -> T:
    """Call ``fn`` in a thread. A caller who is cancelled meanwhile leaves nothing behind.

    Args:
        fn: Blocks; cannot be interrupted.
        args: Its arguments.
        undo: Blocks; called after ``fn`` where nobody will get what it made. The caller waits up to `UNDO_S` seconds
            for both; past that they go on in the background.
    """
    task = keep(asyncio.to_thread(fn, *args))

    async def undone() -> None:
        await asyncio.wait({task})
        if undo is not None and not task.cancelled() and task.exception() is None:
            await asyncio.to_thread(undo)

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await finish(undone(), timeout=UNDO_S)
        raise


async def daemon_call(fn: Callable[..., T], *args: Any) -> T:
    """Call ``fn`` in a daemon thread of its own: for waits and streams that may never return.

    The process can exit while it runs, and it takes no place in any pool. Cancelling gives up waiting, not the call.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    _start(loop, future, fn, args, lambda: None)
    return await future


class CountedThreads:
    """Bounded synchronous SDK calls: at most ``limit`` at once, in threads of their own.

    Other users of thread pools never wait for these, and these for nobody else. A call that is no longer awaited keeps
    its place until it returns, so a hanging service cannot grow threads without bound. The process can exit meanwhile.

    Args:
        limit: Threads at once, for each event loop.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane] = weakref.WeakKeyDictionary()

    @property
    def busy(self) -> int:
        """Calls now running for the current loop."""
        lane = self._lanes.get(asyncio.get_running_loop())
        return lane.busy if lane else 0

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn`` and return what it returns."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.setdefault(loop, _Lane())
        if lane.busy >= self.limit:
            turn: asyncio.Future[None] = loop.create_future()
            lane.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    lane.leave()
                raise
        else:
            lane.busy += 1
        future: asyncio.Future[T] = loop.create_future()
        _start(loop, future, fn, args, lane.leave, bounded=True)
        return await future


class _Lane:
    """Places for one loop; touched on that loop only."""

    def __init__(self) -> None:
        self.busy = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    def leave(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the place passes on: busy stays
                return
        self.busy -= 1


def _start(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    fn: Callable[..., T],
    args: tuple[Any, ...],
    ended: Callable[[], None],
    *,
    bounded: bool = False,
) -> None:
    def deliver(value: T | None, error: BaseException | None) -> None:
        ended()
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]  # T itself may be None
        elif isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            future.set_exception(error)

    def run() -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = fn(*args)
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(deliver, value, failure)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    context = contextvars.copy_context()
    name = f"openenv-{getattr(fn, '__name__', 'call')}"
    try:
        threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    except RuntimeError:
        # At interpreter shutdown no thread starts any more; cleanup is better done late than never.
        if not bounded:
            ended()
            raise
        context.run(run)
