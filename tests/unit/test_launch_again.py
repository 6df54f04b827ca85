"""A second try, and a second owner, stand on their own feet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import attach, exec_server, launch, redact, registry, sandbox
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.journal import Journal
from openenv_sandbox.keepalive import LEASE_S
from openenv_sandbox.testing.fake import FakeClock, FakeCloud
from tests.unit.launch_harness import nothing_left, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
CANARY = "canary-5ecret-value"


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    clock = FakeClock()
    token = CLOCK.set(clock)
    yield clock
    CLOCK.reset(token)


async def test_the_second_try_has_its_own_lease_and_masks_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stillborn sandbox the next one is used through a provider that is open, and its secrets stay hidden.

    Scenario: E11
    Mutation: pipeline._Launch._stages tries again with the lease that undoing released
    """
    monkeypatch.setattr(exec_server, "FIRST_EXEC_S", 0.2)
    with FakeCloud() as cloud:
        once = cloud.faults.add("exec", hang=True)
        provider = cloud.provider(start="exec")
        async with launch("fake-env:1", provider=provider, command=["fake-env"], secrets={"A": CANARY}) as env:
            await env.reset()
            used: Any = env.sandbox._provider
            assert not used.closed
            assert redact.mask(CANARY) == redact.MASK
        assert (once.hits, cloud.count("create")) == (1, 2)
        assert used.closed, "the last lease was given back"
        assert redact.mask(CANARY) == CANARY
        once.release()
        await nothing_left(cloud)


async def test_an_attached_owner_keeps_the_sandbox_alive(clock: FakeClock) -> None:
    """Past the lease it was left with it still runs; let go by its new owner it does not.

    Mutation: attaching does not start the keep-alive
    """
    with FakeCloud(clock=clock) as cloud:
        provider = cloud.provider()
        box = await sandbox("fake-env:1", provider=provider)
        await box.aclose()  # as if its owner were killed
        with registry.registered(provider):
            async with attach(box.ref):
                for _ in range(6):
                    await clock.advance(LEASE_S / 2)
                assert len(cloud.live()) == 1
            await nothing_left(cloud)


async def test_timeouts_of_an_attached_owner_count() -> None:
    """A lifetime is given once; unused for ``idle`` seconds the sandbox is let go.

    Mutation: attaching ignores timeouts.lifetime, or starts no idle timer
    """
    clock = FakeClock()
    reset = CLOCK.set(clock)
    try:
        with FakeCloud(clock=clock) as cloud:
            provider = cloud.provider()
            box = await sandbox("fake-env:1", provider=provider)
            await box.detach()
            with registry.registered(provider):
                await attach(box.ref, timeouts={"lifetime": 20000.0, "idle": 900.0})
                assert cloud.live()[0].expires_at == clock.time() + 20000

                async def gone() -> bool:
                    await clock.advance(300)
                    return not cloud.live()

                await until(gone)
    finally:
        CLOCK.reset(reset)


async def test_an_attached_owner_notices_the_end() -> None:
    """The server of an attached sandbox ends: its clients are told the code, and an event says so.

    Mutation: attaching does not watch
    """
    stages: list[str] = []
    with FakeCloud() as cloud:
        provider = cloud.provider()
        box = await sandbox(
            "fake-env:1", provider=provider, command=["sh", "-c", "until [ -f end ]; do :; done; exit 5"]
        )
        await box.detach()
        with registry.registered(provider):
            async with attach(box.ref, on_event=lambda event: stages.append(f"{event.stage} {event.message}")) as mine:
                await mine.exec("touch end")

                async def told() -> bool:
                    return any("exit code 5" in stage for stage in stages)

                await until(told)


async def test_attaching_without_a_journal_writes_none() -> None:
    """With journal="off" nothing is on disk.

    Mutation: attach drops the argument
    """
    with FakeCloud() as cloud:
        provider = cloud.provider()
        box = await sandbox("fake-env:1", provider=provider, journal="off")
        await box.detach()
        with registry.registered(provider):
            async with attach(box.ref, journal="off"):
                assert await (await Journal.open()).rows() == []


async def test_the_owner_ends_what_no_backend_ends(clock: FakeClock) -> None:
    """Where the backend never ends a sandbox, the living owner deletes it at the end of its lifetime, not before.

    Mutation: Ownership.start_keep_alive gives no end
    """
    with FakeCloud(clock=clock, lifetime=False) as cloud:
        timers = {"ready": 100.0, "episode": 1000.0, "margin": 100.0}
        await sandbox("fake-env:1", provider=cloud.provider(lifetime="none"), timeouts=timers)
        await clock.advance(1100)
        assert len(cloud.live()) == 1
        await clock.advance(101)
        await nothing_left(cloud)
