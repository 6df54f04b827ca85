from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from openenv_sandbox.lifecycle import CountedThreads, Finished, daemon_call, finish

pytestmark = pytest.mark.anyio

Cancel = Callable[[asyncio.Task[object], anyio.CancelScope], Awaitable[None]]


async def _turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def _scope(task: asyncio.Task[object], scope: anyio.CancelScope) -> None:
    scope.cancel()
    await _turns()


async def _once(task: asyncio.Task[object], scope: anyio.CancelScope) -> None:
    task.cancel()
    await _turns()


async def _twice(task: asyncio.Task[object], scope: anyio.CancelScope) -> None:
    for _ in range(2):
        task.cancel()
        await _turns()


async def _both(task: asyncio.Task[object], scope: anyio.CancelScope) -> None:
    scope.cancel()
    await _turns()
    await _twice(task, scope)


MODES: dict[str, Cancel] = {"scope": _scope, "cancel": _once, "twice": _twice, "scope-and-cancel": _both}


@pytest.mark.parametrize("mode", MODES)
async def test_cleanup_is_waited_for_under_every_cancellation(mode: str) -> None:
    """The caller goes on only when the cleanup has ended.

    Scenario: A02
    Mutation: replace the loop in lifecycle._settle by one asyncio.wait
    """
    begun, gate, log = asyncio.Event(), asyncio.Event(), list[str]()
    scope = anyio.CancelScope()

    async def cleanup() -> str:
        begun.set()
        await gate.wait()
        log.append("cleaned")
        return "value"

    async def work() -> None:
        with scope:
            try:
                await asyncio.sleep(3600)
            finally:
                result = await finish(cleanup(), timeout=60)
                log.append(f"went on: {result.value}")

    task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work())
    await _turns()
    task.cancel()
    await begun.wait()
    await MODES[mode](task, scope)
    assert log == []
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cleaned", "went on: value"]


async def test_a_cancellation_during_cleanup_is_delivered_afterwards() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    after: list[str] = []

    async def cleanup() -> None:
        begun.set()
        await gate.wait()

    async def work() -> None:
        await finish(cleanup(), timeout=60)
        after.append("returned")
        await asyncio.sleep(3600)

    task = asyncio.get_running_loop().create_task(work())
    await begun.wait()
    task.cancel()
    await _turns()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert after == ["returned"]


async def test_past_its_time_the_cleanup_goes_on() -> None:
    gate = asyncio.Event()

    async def cleanup() -> int:
        await gate.wait()
        return 7

    result = await finish(cleanup(), timeout=0.01)
    assert not result.done
    gate.set()
    assert await result.task == 7


async def test_errors_of_the_cleanup_are_returned_not_raised() -> None:
    async def cleanup() -> None:
        raise ValueError("no")

    result: Finished[None] = await finish(cleanup(), timeout=5)
    assert result.done
    assert isinstance(result.error, ValueError)


async def test_timeout_of_anyio_still_reports_itself() -> None:
    done: list[bool] = []

    async def cleanup() -> None:
        await asyncio.sleep(0.05)
        done.append(True)

    async def work() -> None:
        with anyio.fail_after(0.02):
            await finish(cleanup(), timeout=5)
            await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await work()
    assert done == [True]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout came with 3.11")
async def test_asyncio_timeout_still_reports_itself() -> None:
    done: list[bool] = []

    async def cleanup() -> None:
        await asyncio.sleep(0.05)
        done.append(True)

    async def work() -> None:
        async with asyncio.timeout(0.02):  # type: ignore[attr-defined,unused-ignore]
            await finish(cleanup(), timeout=5)
            await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await work()
    assert done == [True]
    await asyncio.sleep(0)  # and nothing is left to be delivered


async def test_a_task_group_that_fails_waits_for_the_cleanup() -> None:
    log: list[str] = []
    ready = anyio.Event()

    async def cleanup() -> None:
        await asyncio.sleep(0.02)
        log.append("cleaned")

    async def holder() -> None:
        try:
            ready.set()
            await asyncio.sleep(3600)
        finally:
            await finish(cleanup(), timeout=5)

    async def failing() -> None:
        await ready.wait()
        raise RuntimeError("sibling")

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(holder)
            group.start_soon(failing)

    with pytest.raises(Exception, match="unhandled errors") as caught:
        await work()
    assert log == ["cleaned"]
    assert "sibling" in repr(caught.value)


async def test_daemon_call_gives_value_and_error() -> None:
    assert await daemon_call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await daemon_call(divmod, 1, 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await daemon_call(next, iter(()))


async def test_counted_threads_are_bounded_and_do_not_starve_others() -> None:
    """More calls than threads wait for their turn, in order, and nobody else waits with them.

    Mutation: CountedThreads.run ignores the limit, or lane.leave does not pass the place on
    """
    threads, gate = CountedThreads(2), threading.Event()
    now, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        gate.wait(30)
        with lock:
            now -= 1

    tasks = [asyncio.create_task(threads.run(call)) for _ in range(6)]
    await _turns()
    assert threads.busy == 2
    assert await daemon_call(int, "5") == 5
    tasks[0].cancel()  # the thread goes on and keeps its place
    tasks[5].cancel()  # never started
    await _turns()
    assert threads.busy == 2
    gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(r, asyncio.CancelledError) for r in results] == [True, False, False, False, False, True]
    assert most == 2
    with anyio.fail_after(30):
        while threads.busy:  # noqa: ASYNC110  # the last thread says so a moment after its value
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("how", ["daemon_call(wait)", "CountedThreads(1).run(wait)"])
def test_the_process_exits_while_a_call_hangs(how: str) -> None:
    """A parked call does not hold the process.

    Mutation: threads of lifecycle._start without daemon=True
    """
    code = (
        "import asyncio, threading\n"
        "from openenv_sandbox.lifecycle import CountedThreads, daemon_call\n"
        "wait = threading.Event().wait\n"
        "async def main():\n"
        f"    await asyncio.wait_for({how}, 0.05)\n"
        "try:\n    asyncio.run(main())\nexcept (TimeoutError, asyncio.TimeoutError):\n    print('out')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "out"), done.stderr


async def test_where_no_thread_can_start_a_bounded_call_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """At interpreter shutdown a delete by a blocking SDK still happens; an unbounded wait is refused.

    Scenario: A17
    Mutation: lifecycle._start lets the RuntimeError of Thread.start out for bounded calls
    """

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert await CountedThreads(1).run(divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match="new thread"):
        await daemon_call(divmod, 7, 2)


async def test_a_cancelled_scope_does_not_make_cleanup_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope cancels again in every turn of the loop; cleanup sleeps through that.

    Mutation: lifecycle._settle without its anyio shield
    """
    begun, gate, waits, wait = asyncio.Event(), asyncio.Event(), list[None](), asyncio.wait

    async def counted(*args: Any, **kwargs: Any) -> Any:
        waits.append(None)
        return await wait(*args, **kwargs)

    async def cleanup() -> None:
        begun.set()
        await gate.wait()

    async def work() -> None:
        with scope:
            await finish(cleanup(), timeout=60)

    monkeypatch.setattr(asyncio, "wait", counted)
    scope = anyio.CancelScope()
    task = asyncio.get_running_loop().create_task(work())
    await begun.wait()
    scope.cancel()
    await _turns(100)
    gate.set()
    await task
    assert len(waits) <= 3
