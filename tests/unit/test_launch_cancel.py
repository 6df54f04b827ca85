from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import Event, launch
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing.fake import FakeCloud
from tests.unit.launch_harness import MODES, Canceller, nothing_left, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.provider import SandboxRef

pytestmark = pytest.mark.anyio

FAULTS = {
    "preparing": ("prepare", "before", {}),
    "create not yet done": ("create", "before", {}),
    "create done, reply on its way": ("create", "after", {}),
    "first command": ("exec", "before", {"start": "exec"}),
    "endpoint": ("endpoint", "before", {}),
}
STAGES = ["building", "creating", "created", "starting", "ready", "connected"]


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


async def _forever(cloud: FakeCloud, on_event: Any = None, **capabilities: Any) -> None:
    async with launch("fake-env:1", provider=cloud.provider(**capabilities), on_event=on_event):
        await asyncio.sleep(3600)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", FAULTS)
async def test_cancelled_while_a_request_is_on_its_way(cloud: FakeCloud, stage: str, mode: str) -> None:
    """Whatever request is open, and however the launch is cancelled, nothing is left.

    Scenario: A02
    Mutation: creating.Creation._undo returns before `await asyncio.wait({task})`, or awaits cleanup without finish()
    """
    op, when, capabilities = FAULTS[stage]
    rule = cloud.faults.add(op, when=when, hang=True)
    canceller = Canceller(mode)
    canceller.start(lambda: _forever(cloud, **capabilities))
    await rule.reached()
    await canceller.cancel()
    rule.release()
    await canceller.ended()
    assert cloud.live() == []  # waited for, not left to the background
    await nothing_left(cloud)
    assert rule.hits == 1
    if op not in ("prepare",):
        assert cloud.count("create") == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", STAGES)
async def test_cancelled_at_a_stage(cloud: FakeCloud, stage: str, mode: str) -> None:
    """A cancellation that arrives the moment a stage is told of leaves nothing.

    Scenario: A02
    Mutation: pipeline._Launch._undo no longer deletes the sandbox it owns
    """
    canceller, reached = Canceller(mode), asyncio.Event()

    def on_event(event: Event) -> None:
        if event.stage == stage:
            reached.set()

    canceller.start(lambda: _forever(cloud, on_event))
    await reached.wait()
    await canceller.cancel()
    await canceller.ended()
    assert cloud.live() == []
    await nothing_left(cloud)


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_while_the_sandbox_is_deleted(cloud: FakeCloud, mode: str) -> None:
    """Leaving the block goes on although the task that leaves it is cancelled.

    Mutation: launcher._Handle.__aexit__ awaits _end directly and Ownership.delete awaits _delete_once directly
    """
    rule = cloud.faults.add("delete", when="before", hang=True)
    canceller, entered = Canceller(mode), asyncio.Event()

    async def work() -> None:
        async with launch("fake-env:1", provider=cloud.provider()):
            entered.set()
        await asyncio.sleep(3600)

    canceller.start(work)
    await entered.wait()
    await rule.reached()
    await canceller.cancel()
    rule.release()
    await canceller.ended()
    await nothing_left(cloud)


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_while_the_answer_is_written_down(
    cloud: FakeCloud, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox exists and its row is being written: that it was made is not forgotten.

    Scenario: A02
    Mutation: Creation._undo looks at the outcome of its task alone, not at what was made
    """
    begun, gate, created = asyncio.Event(), asyncio.Event(), Journal.created

    async def slow(self: Journal, ref: SandboxRef, **kw: Any) -> None:
        begun.set()
        await gate.wait()
        await created(self, ref, **kw)

    monkeypatch.setattr(Journal, "created", slow)
    canceller = Canceller(mode)
    canceller.start(lambda: _forever(cloud))
    await begun.wait()
    await canceller.cancel()
    for _ in range(50):
        await asyncio.sleep(0)
    gate.set()
    await canceller.ended()
    assert cloud.live() == []
    await nothing_left(cloud)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_create_that_outlasts_the_cleanup_timer_is_deleted_when_it_ends(cloud: FakeCloud, when: str) -> None:
    """The launch returns after its cleanup timer; the create goes on, and what it makes is deleted.

    Scenario: A08
    Mutation: Creation.undo does not write pending_delete, or finish() cancels its task at the timeout
    """
    rule = cloud.faults.add("create", when=when, hang=True)
    task = asyncio.ensure_future(_launch(cloud, timeouts={"cleanup": 0.05}))
    await rule.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rows = await (await Journal.open()).rows()
    assert [row.state for row in rows] == ["pending_delete"]
    rule.release()
    await nothing_left(cloud)
    assert cloud.count("delete") == 1


async def _launch(cloud: FakeCloud, **spec: Any) -> Any:
    return await launch("fake-env:1", provider=cloud.provider(), **spec)


async def test_no_request_leaves_after_a_cancellation(cloud: FakeCloud) -> None:
    """Launches that wait for their turn are given up at once, and never create.

    Mutation: Creation._undo no longer cancels the task that waits for its turn
    """
    from openenv_sandbox import retry

    provider = cloud.provider()
    gate = retry.gate("fake", provider().scope())
    held = [await gate.starts.acquire(timeout=1) for _ in range(gate.starts.limit or 0)]
    tasks = [asyncio.ensure_future(_launch(cloud)) for _ in range(5)]

    async def all_wait() -> bool:
        return gate.starts.waiting == 5

    await until(all_wait)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=10)
    assert all(task.cancelled() for task in tasks)
    for place in held:
        place.release()
    await nothing_left(cloud)
    assert cloud.count("create") == 0
