"""One event loop in the background, for the lifecycle work of the blocking face.

Steps of a blocking client never come here; launching, stopping and whatever else needs a loop does. At exit the live
clients and sandboxes are closed first, bounded, then the loop: a loop left open would keep the process from ending.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.from_thread import BlockingPortal

T = TypeVar("T")

EXIT_GRACE_S = 30.0
"""How long the exit hook waits for everything that is still open, in seconds."""

INTERRUPT_GRACE_S = 60.0
"""How long a first Ctrl-C waits for the cleanup of the call it interrupts, in seconds."""

STOP_GRACE_S = 5.0
"""How long the exit hook waits for the loop itself to end, in seconds."""

_log = logging.getLogger("openenv.client")
_lock = threading.Lock()
_portal: BlockingPortal | None = None
_thread: threading.Thread | None = None
_pid: int | None = None
_loop: asyncio.AbstractEventLoop | None = None
_live: weakref.WeakKeyDictionary[Any, Callable[[Any], Awaitable[object]]] = weakref.WeakKeyDictionary()
_live_sync: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def run_sync(async_fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run ``async_fn(*args)`` in the background loop and wait for it.

    Works in any thread, also in one whose own loop is running (a notebook cell), which then stands still meanwhile. A
    Ctrl-C cancels the call and waits for its cleanup; a second one does not.

    Raises:
        UsageError: Called from the background loop itself, or in a forked child.
    """
    home = loop()
    if threading.current_thread() is _thread:
        raise UsageError(
            "a blocking call was made from the background loop itself, where it would wait for itself for ever",
            hint="use the awaitable form inside coroutines",
        )
    ended = threading.Event()

    async def run() -> T:
        try:
            return await async_fn(*args)
        finally:
            ended.set()

    # A task of its own, not one of the portal's: cancelling it interrupts the call once and lets its cleanup await.
    future = asyncio.run_coroutine_threadsafe(run(), home)
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            ended.wait(INTERRUPT_GRACE_S)
        raise


def loop() -> asyncio.AbstractEventLoop:
    """The background loop, started if need be.

    Raises:
        UsageError: In a forked child.
    """
    _get_portal()
    assert _loop is not None
    return _loop


def call_in(
    home: asyncio.AbstractEventLoop, fn: Callable[..., Awaitable[T]], *args: Any, timeout: float | None = None
) -> T:
    """Run ``fn(*args)`` in the loop ``home`` from a thread that may block, and wait for it.

    Args:
        home: The loop what ``fn`` touches belongs to.
        fn: Called inside it.
        args: Its arguments.
        timeout: Longest wait in seconds; None for none.

    Raises:
        UsageError: ``home`` has ended, or it runs in this very thread.
    """
    if home is _loop and home.is_running():
        return run_sync(fn, *args)
    if home.is_closed() or not home.is_running():
        raise UsageError("the event loop this client was launched in has ended", hint="launch it by .sync() instead")
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is home:
        raise UsageError(
            "a blocking call would stop the event loop it waits for", hint="await the call, or make it in a thread"
        )

    async def run() -> T:
        return await fn(*args)

    return asyncio.run_coroutine_threadsafe(run(), home).result(timeout)


def closes_at_exit(thing: Any, close: Callable[[Any], Awaitable[object]]) -> None:
    """Have ``close(thing)`` awaited in the background loop when the process ends and ``thing`` is still alive."""
    with _lock:
        _live[thing] = close
    _hook_exit()


def closes_at_exit_sync(thing: Any, close: Callable[[Any], object]) -> None:
    """Have ``close(thing)`` called when the process ends and ``thing`` is still alive; it must be bounded by itself."""
    with _lock:
        _live_sync[thing] = close
    _hook_exit()


def closed(thing: Any) -> None:
    """Forget ``thing``: it was closed in time."""
    with _lock:
        _live.pop(thing, None)
        _live_sync.pop(thing, None)


def _get_portal() -> BlockingPortal:
    global _portal, _pid, _loop, _thread
    if _pid is not None and _pid != os.getpid():
        raise UsageError(
            f"the background loop belongs to process {_pid}; it did not come along into this fork",
            hint="fork before the first blocking launch, or start workers by spawn",
        )
    portal = _portal
    if portal is None:
        with _lock:
            if _portal is None:
                started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = Future()
                # A thread of our own instead of anyio's context manager: finalising that one's generator at
                # interpreter exit waits for a thread that no longer runs.
                _thread = threading.Thread(target=_serve, args=(started,), daemon=True, name="openenv-portal")
                _thread.start()
                _portal, _loop = started.result()
                _pid = os.getpid()
            portal = _portal
        _hook_exit()
    return portal


def _serve(started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]]) -> None:
    import anyio
    from anyio.from_thread import BlockingPortal

    async def main() -> None:
        async with BlockingPortal() as portal:
            started.set_result((portal, asyncio.get_running_loop()))
            await portal.sleep_until_stopped()

    try:
        anyio.run(main)
    except BaseException as error:
        if not started.done():
            started.set_exception(error)
        else:
            _log.debug("the background loop ended by %s", type(error).__name__)


_hooked = False


def _hook_exit() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit, os.getpid())


def _at_exit(pid: int) -> None:
    global _portal
    if pid != os.getpid():
        return
    with _lock:
        sync_things, things = list(_live_sync.items()), list(_live.items())
        _live_sync.clear()
        _live.clear()
    for thing, close in sync_things:
        try:
            close(thing)
        except Exception as error:
            _log.warning("closing %r at exit: %s", type(thing).__name__, error)
    portal, thread = _portal, _thread
    if portal is None or thread is None:
        return
    try:
        if things:
            future = portal.start_task_soon(_close_all, things)
            future.result(EXIT_GRACE_S)
    except Exception as error:
        _log.warning("closing at exit did not finish: %s", str(error) or type(error).__name__)
    finally:
        _portal = None
        with contextlib.suppress(RuntimeError):
            portal.call(portal.stop, True)
        thread.join(STOP_GRACE_S)


async def _close_all(things: list[tuple[Any, Callable[[Any], Awaitable[object]]]]) -> None:
    async def one(thing: Any, close: Callable[[Any], Awaitable[object]]) -> None:
        try:
            await close(thing)
        except Exception as error:
            _log.warning("closing %s at exit: %s", type(thing).__name__, error)

    await asyncio.gather(*(one(thing, close) for thing, close in things))
