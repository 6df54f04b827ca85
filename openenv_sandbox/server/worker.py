"""Threads in which synchronous environments live."""

from __future__ import annotations

import asyncio
import inspect
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """One daemon thread that runs calls in the order in which they came.

    The thread starts with the first call. It is a daemon because a step that never returns must not hold the process.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def post(self, call: Callable[[], None]) -> None:
        """Run ``call``, which must not raise, after all that was posted before."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()  # fails where the system has no more threads: then the next call tries again
            self._thread = thread
        self._calls.put(call)

    def submit(
        self, function: Callable[[], T], done: Callable[[T | None, BaseException | None], None] | None = None
    ) -> None:
        """Run ``function``; ``done(result, error)`` is then called on the event loop that called this."""
        loop = asyncio.get_running_loop()

        def call() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = function()
            except BaseException as caught:  # SystemExit in a step must not end the thread of the session
                error = caught
            if done is not None:
                deliver(loop, done, result, error)

        self.post(call)

    async def run(self, function: Callable[[], T]) -> T:
        """Run ``function`` and wait for it; giving up waiting does not stop it."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if waiter.done():
                return
            if error is None:
                waiter.set_result(result)  # type: ignore[arg-type]
            else:
                waiter.set_exception(contain(error))

        self.submit(function, done)
        return await waiter

    def stop(self) -> None:
        """End the thread after what was posted so far."""
        if self._thread is not None:
            self._calls.put(None)

    def _run(self) -> None:
        calls = self._calls
        while True:
            call = calls.get()
            if call is None:
                return
            call()
            del call  # what it refers to must not live until the next one comes


async def settle(call: Callable[[], Any]) -> Any:
    """What ``call`` returns on the event loop, awaited where it can be; an exit in it does not end the loop."""
    try:
        result = call()
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        raise contain(error) from error


def contain(error: BaseException) -> Exception:
    """The error itself, or one an event loop can carry in place of SystemExit and its like."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))
    wrapped.__cause__ = error
    return wrapped


def deliver(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any) -> None:
    """Call on ``loop`` from another thread; nothing happens when the loop is closed already."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
