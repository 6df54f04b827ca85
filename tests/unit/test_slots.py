from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.errors import CreateTimeout
from openenv_sandbox.retry import Gate, Slots, gate

if TYPE_CHECKING:
    from openenv_sandbox.retry import Held

pytestmark = pytest.mark.anyio


class Live:
    """Counts what is alive, and the most there ever was."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def change(self, by: int) -> None:
        self.now += by
        self.peak = max(self.peak, self.now)


async def test_never_more_than_the_limit_live_and_the_rest_queue() -> None:
    """64 ask, 20 live at most, and all get their turn, in order.

    Scenario: I01
    Mutation: Slots._pass_on compares with >= limit + 1, or acquire does not wait
    """
    slots, live, order = Slots(20), Live(), []

    async def one(n: int) -> None:
        held = await slots.acquire(timeout=60)
        order.append(n)
        live.change(1)
        for _ in range(3):
            await asyncio.sleep(0)
        live.change(-1)
        held.release()

    await asyncio.gather(*(one(n) for n in range(64)))
    assert live.peak == 20
    assert order == list(range(64))
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_the_deadline_says_how_many_are_in_use() -> None:
    """Waiting for a place ends with the create timer, and says in-use and limit.

    Scenario: I01
    Mutation: the message leaves out the limit
    """
    slots = Slots(2)
    held = [await slots.acquire(timeout=1) for _ in range(2)]
    with pytest.raises(CreateTimeout, match="2 of 2 in use") as caught:
        await slots.acquire(timeout=0.01)
    assert (caught.value.outcome, caught.value.retryable) == ("failed", True)
    assert slots.waiting == 0
    for one in held:
        one.release()
        one.release()
    assert slots.in_use == 0


async def test_places_are_taken_all_or_none_so_that_nobody_waits_for_each_other() -> None:
    """Four rollouts of 8 sandboxes, 10 places, slow deletes: never more than 10, and all end.

    Scenario: I04
    Mutation: acquire(count) takes one place after the other, or a place is free before its delete ended
    """
    slots, live = Slots(10), Live()
    deleting = asyncio.Event()

    async def rollout() -> None:
        held = await slots.acquire(8, timeout=60)
        live.change(8)
        await asyncio.sleep(0)
        await deleting.wait()  # the rollout is over; the provider still counts its sandboxes
        await asyncio.sleep(0)
        live.change(-8)
        held.release()

    tasks = [asyncio.create_task(rollout()) for _ in range(4)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert (live.now, slots.waiting) == (8, 3)
    deleting.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert (live.peak, slots.in_use) == (8, 0)
    with pytest.raises(CreateTimeout, match="the limit is 10"):
        await slots.acquire(11, timeout=60)


async def test_a_cancelled_waiter_gives_its_turn_on() -> None:
    slots = Slots(1)
    first = await slots.acquire(timeout=1)
    waiters = [asyncio.create_task(slots.acquire(timeout=60)) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    first.release()  # the first waiter is gone, the second is next
    waiters[1].cancel()  # and is cancelled in the moment its turn comes
    held = await asyncio.wait_for(waiters[2], 60)
    held.release()
    assert (slots.in_use, slots.waiting) == (0, 0)
    assert all(waiter.cancelled() for waiter in waiters[:2])


async def _waits(slots: Slots) -> None:
    for _ in iter(lambda: slots.waiting, 1):
        await asyncio.sleep(0.001)


async def test_places_are_counted_over_loops_and_threads() -> None:
    slots = Slots(1)
    held = await slots.acquire(timeout=1)
    got: list[Held] = []

    def elsewhere() -> None:
        async def run() -> None:
            got.append(await slots.acquire(timeout=60))

        asyncio.run(run())

    thread = threading.Thread(target=elsewhere, daemon=True)
    thread.start()
    await asyncio.wait_for(_waits(slots), 60)
    held.release()
    await asyncio.to_thread(thread.join, 60)
    assert slots.in_use == 1
    await asyncio.to_thread(got[0].release)
    assert slots.in_use == 0


async def test_a_raised_limit_lets_waiters_in() -> None:
    slots = Slots(1)
    held = await slots.acquire(timeout=1)
    waiter = asyncio.create_task(slots.acquire(timeout=60))
    await asyncio.sleep(0)
    assert not waiter.done()
    slots.set_limit(None)
    (await waiter).release()
    held.release()


async def test_starts_are_bounded() -> None:
    """64 workers and a slow daemon: so many creates at once as the gate lets, no more.

    Scenario: I07
    Mutation: Gate.starting does not hold its place during the block
    """
    turn, live = Gate(starting=4), Live()
    go = asyncio.Event()

    async def one() -> None:
        async with turn.starting(timeout=60):
            live.change(1)
            await go.wait()
            live.change(-1)

    tasks = [asyncio.create_task(one()) for _ in range(64)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert (live.now, turn.starts.waiting) == (4, 60)
    go.set()
    await asyncio.gather(*tasks)
    assert live.peak == 4


async def test_a_pause_only_grows() -> None:
    now = [100.0]
    turn = Gate(clock=lambda: now[0])
    turn.pause(5)
    turn.pause(2)
    assert turn.pause_left == 5
    now[0] += 6
    assert turn.pause_left == 0


async def test_one_gate_for_each_backend_and_scope() -> None:
    assert gate("p", "a", live=3) is gate("p", "a") is not gate("p", "b")
    assert gate("p", "a").live.limit == 3
    held = await gate("p", "a").slot(timeout=1)
    assert gate("p", "a").live.in_use == 1
    held.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_places_of_its_own() -> None:
    """What the parent was creating at the moment of the fork takes no place in the child.

    Scenario: A14
    Mutation: a child inherits the gates
    """
    code = (
        "import asyncio, os, sys\n"
        "from openenv_sandbox._slots import STARTING, gate\n"
        "held = asyncio.run(gate('p', 's').starts.acquire(STARTING, timeout=1))\n"
        "if (child := os.fork()) == 0:\n"
        "    os._exit(gate('p', 's').starts.in_use)\n"
        "assert gate('p', 's').starts.in_use == STARTING\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
