from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import (
    AuthError,
    BuildError,
    CircuitOpen,
    CleanupError,
    CreateTimeout,
    Event,
    OpenEnvError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    ReadyTimeout,
    SandboxError,
    SandboxGone,
    ServerExited,
    launch,
    sandbox,
)
from openenv_sandbox import breaker as breakers
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import Image, Prepared
from openenv_sandbox.testing.fake import FakeClock, FakeCloud, FakeProvider
from tests.unit.launch_harness import notes, nothing_left, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.provider import LogSink
    from openenv_sandbox.spec import SandboxSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


async def _fails(cloud: FakeCloud, error: type[OpenEnvError], **spec: Any) -> Any:
    capabilities = spec.pop("capabilities", {})
    with pytest.raises(error) as caught:
        await launch("fake-env:1", provider=cloud.provider(**capabilities), **spec)
    await nothing_left(cloud)
    assert caught.value.provider == "fake"
    return caught.value


@pytest.mark.parametrize(
    ("status", "error"), [(401, AuthError), (402, QuotaExceeded), (500, ProviderUnavailable), (0, ProviderUnavailable)]
)
async def test_a_refused_create_leaves_nothing(cloud: FakeCloud, status: int, error: type[OpenEnvError]) -> None:
    """The first error is the one that is seen, and it says what was being created.

    Scenario: H04
    Mutation: Creation.run drops the text about what it was created from
    """
    rule = cloud.faults.add("create", status=status, times=None)
    found = await _fails(cloud, error, timeouts={"create": 1.0}, capabilities={"create_settle_s": 0.2})
    assert "creating from fake-env:1" in found.message
    assert rule.hits >= 1
    assert cloud.count("create") < 8


async def test_a_rate_limit_is_waited_for_within_the_create_timer(cloud: FakeCloud) -> None:
    rule = cloud.faults.add("create", status=429, retry_after=0.05, times=2)
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        await env.reset()
    assert rule.hits == 2
    cloud.faults.add("create", status=429, retry_after=60, times=None)
    await _fails(cloud, RateLimited, timeouts={"create": 0.5})


async def test_a_lost_reply_gives_one_sandbox(cloud: FakeCloud) -> None:
    rule = cloud.faults.add("create", when="after", status=0)
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        await env.reset()
        assert len(cloud.live()) == 1
    assert rule.hits == 1
    await nothing_left(cloud)


async def test_a_lost_reply_without_deduplication_is_looked_up_and_adopted() -> None:
    """Where a second create would give a second sandbox, the first is found by its key instead.

    Mutation: retry.create repeats without dedupes_key
    """
    with FakeCloud(dedupes=False) as cloud:
        rule = cloud.faults.add("create", when="after", status=0)
        async with launch("fake-env:1", provider=cloud.provider(dedupes_key=False)) as env:
            await env.reset()
        assert rule.hits == 1
        assert cloud.count("create") == 1
        assert cloud.peak == 1
        await nothing_left(cloud)


async def test_a_sandbox_that_appears_late_is_still_deleted() -> None:
    """A lost create shows up after the first look: the row waits for it, and so does a task.

    Scenario: A02
    Mutation: Creation._undo closes the row when find() is empty
    """
    with FakeCloud(dedupes=False) as cloud:
        rule = cloud.faults.add("create", when="after", status=0, late=0.6)
        with pytest.raises(ProviderUnavailable) as caught:
            await launch("fake-env:1", provider=cloud.provider(dedupes_key=False, create_settle_s=30.0))
        assert "may still appear" in notes(caught.value)
        assert len(cloud.live()) == 1
        await nothing_left(cloud)
        assert rule.hits == 1
        assert cloud.count("find") >= 2


async def test_a_create_that_hangs_is_bounded(cloud: FakeCloud) -> None:
    """The create timer holds; what it makes afterwards is deleted.

    Scenario: D10
    Mutation: Creation.run awaits its task without the timer
    """
    rule = cloud.faults.add("create", when="before", hang=True)
    with pytest.raises(CreateTimeout) as caught:
        await launch("fake-env:1", provider=cloud.provider(), timeouts={"create": 0.1, "cleanup": 0.1})
    assert "background" in notes(caught.value)
    rule.release()
    await nothing_left(cloud)
    assert cloud.count("delete") == 1


async def test_the_cause_is_shown_not_the_cleanup(cloud: FakeCloud) -> None:
    """Readiness fails and the sandbox is gone by itself: the readiness error is raised, with its history.

    Scenario: A11
    Mutation: pipeline._Launch._undo raises what the delete raised
    """
    gone = cloud.faults.add("delete", status=404)
    found = await _fails_ready(cloud, ["fake-env", "--health", "503"])
    assert gone.hits == 1
    assert (found.attempts > 1, found.last) == (True, "HTTP 503")
    broken = cloud.faults.add("delete", status=400, message="delete is broken", times=None)
    with pytest.raises(ReadyTimeout) as caught:
        await launch(
            "fake-env:1", provider=cloud.provider(), command=["fake-env", "--health", "503"], timeouts={"ready": 0.2}
        )
    assert "delete is broken" in notes(caught.value)
    assert broken.hits >= 1
    rows = await (await Journal.open()).rows(state="pending_delete")
    assert len(rows) == len([box for box in cloud.live() if box.key == rows[0].key])


async def _fails_ready(cloud: FakeCloud, command: list[str]) -> Any:
    with pytest.raises(ReadyTimeout) as caught:
        await launch("fake-env:1", provider=cloud.provider(), command=command, timeouts={"ready": 0.3})
    cloud.boxes.clear()
    return caught.value


async def test_a_hanging_delete_becomes_a_pending_one(cloud: FakeCloud) -> None:
    """Leaving is bounded; the durable record and the task complete the delete.

    Scenario: A08
    Mutation: Ownership._delete does not write pending_delete first
    """
    rule = cloud.faults.add("delete", hang=True)
    with pytest.raises(CleanupError) as caught:
        async with launch("fake-env:1", provider=cloud.provider(), timeouts={"cleanup": 0.1}):
            pass
    assert [ref.id for ref in caught.value.left] == [box.id for box in cloud.live()]
    rows = await (await Journal.open()).rows()
    assert [row.state for row in rows] == ["pending_delete"]
    rule.release()
    await nothing_left(cloud)


async def test_the_first_command_hangs(cloud: FakeCloud) -> None:
    """A stillborn sandbox is destroyed and one more is tried; twice is an error.

    Scenario: E11
    Mutation: pipeline._Launch._stages does not try again, or tries for ever
    """
    from openenv_sandbox import exec_server

    old, exec_server.FIRST_EXEC_S = exec_server.FIRST_EXEC_S, 0.2
    try:
        once = cloud.faults.add("exec", hang=True)
        provider = cloud.provider(start="exec")
        async with launch("fake-env:1", provider=provider, command=["fake-env"]) as env:
            await env.reset()
        assert (once.hits, cloud.count("create"), cloud.peak) == (1, 2, 1)
        once.release()
        always = cloud.faults.add("exec", hang=True, times=None)
        with pytest.raises(SandboxError, match="first command"):
            await launch("fake-env:1", provider=provider, command=["fake-env"])
        assert always.hits == 2
        always.release()
        await nothing_left(cloud)
    finally:
        exec_server.FIRST_EXEC_S = old


async def test_what_keeps_dying_opens_the_breaker(cloud: FakeCloud) -> None:
    """Endless re-creation ends after five early deaths, and the error says why.

    Scenario: A19
    Mutation: pipeline no longer asks breaker().check(), or no longer tells it of deaths
    """
    for _ in range(breakers.LIMIT):
        await _fails(cloud, ServerExited, command=["fake-env", "--crash", "--code", "9"])
    found = await _fails(cloud, CircuitOpen)
    assert cloud.count("create") == breakers.LIMIT
    assert "code 9" in found.reasons[0]


async def test_dying_young_after_ready_counts_too(cloud: FakeCloud) -> None:
    """Sandboxes that die a second after they were ready open it as well.

    Scenario: A19
    Mutation: Ownership._ended no longer tells the breaker
    """
    rule = cloud.faults.add("create", die={"after_s": 0.1, "code": 4}, times=None)
    brk = breakers.breaker("fake")
    for n in range(breakers.LIMIT):
        async with launch("fake-env:1", provider=cloud.provider()) as env:
            await until(lambda n=n: _deaths(brk, n + 1))  # type: ignore[misc]
            await env.sandbox.stop()
    assert rule.hits == breakers.LIMIT
    assert brk.is_open


async def _deaths(brk: breakers.Breaker, count: int) -> bool:
    return len(brk._deaths) >= count


async def test_a_sandbox_that_vanishes_is_told_apart_from_a_server_that_exits(cloud: FakeCloud) -> None:
    """The vendor removes it: `SandboxGone` with id, age and lifetime, never a timeout. A crash: its exit code.

    Scenario: B03
    Mutation: Ownership.death does not ask the backend whether the sandbox still exists
    """
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        await env.reset()
        box = cloud.live()[0]
        cloud.boxes.pop(box.id).end()
        with pytest.raises(SandboxGone) as gone:
            await env.step({"a": 1})
        assert box.id in str(gone.value)
        assert "lifetime" in gone.value.message
    cloud.faults.add("create", die={"after_steps": 1, "code": 17})
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        await env.reset()
        await env.step({"a": 1})
        with pytest.raises(ServerExited, match="17") as exited:
            await env.step({"a": 2})
        assert exited.value.exit_code == 17
    await nothing_left(cloud)


class _Building(FakeProvider):
    """Builds for a while, and counts."""

    builds = 0
    fail = False
    gate: asyncio.Event

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        type(self).builds += 1
        on_log("step 1 of 2")
        await self.gate.wait()
        on_log("step 2 of 2")
        if self.fail:
            raise BuildError("the build failed", provider=self.name)
        return Prepared(image.name)


@pytest.mark.parametrize("fail", [False, True])
async def test_many_launches_of_one_image_build_once(cloud: FakeCloud, fail: bool) -> None:
    """32 at once: one build, 31 wait; a failure reaches all, once.

    Scenario: H05
    Mutation: prepare.prepare starts a flight of its own for everyone
    """

    class Provider(_Building):
        address = cloud.address
        gate = asyncio.Event()

    Provider.fail = fail
    seen: list[Event] = []
    tasks = [asyncio.ensure_future(_sandbox(Provider, seen.append if n == 31 else None)) for n in range(32)]

    async def all_wait() -> bool:
        return any(event.message == "step 1 of 2" for event in seen) and len(await (await Journal.open()).rows()) == 32

    await until(all_wait)
    Provider.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert Provider.builds == 1
    if fail:
        assert all(isinstance(result, BuildError) and "step 2 of 2" in str(result) for result in results)
        assert cloud.count("create") == 0
    else:
        assert len({result.ref.id for result in results}) == 32  # type: ignore[union-attr]
        await asyncio.gather(*(result.stop() for result in results))  # type: ignore[union-attr]
    await nothing_left(cloud)


async def _sandbox(provider: type[FakeProvider], on_event: Any) -> Any:
    return await sandbox("fake-env:1", provider=provider, on_event=on_event)


async def test_preparing_has_its_own_timer(cloud: FakeCloud) -> None:
    class Provider(_Building):
        address = cloud.address
        gate = asyncio.Event()

    with pytest.raises(BuildError, match=r"longer than 0\.1 s") as caught:
        await sandbox("fake-env:1", provider=Provider, timeouts={"prepare": 0.1})
    assert "step 1 of 2" in str(caught.value)
    await nothing_left(cloud)


async def test_an_idle_client_lets_its_sandbox_go() -> None:
    """Left open and unused, it is released after the idle timer; the next call says so.

    Scenario: B11
    Mutation: KeepAlive never calls on_idle; or calls do not count as use (Ownership.count_use does nothing)
    """
    from openenv_sandbox.clock import CLOCK

    clock = FakeClock()
    token = CLOCK.set(clock)
    try:
        with FakeCloud(clock=clock) as cloud:
            async with launch("fake-env:1", provider=cloud.provider(), timeouts={"idle": 60}) as env:
                await env.reset()
                await clock.advance(59)
                await env.step({"a": 1})
                await clock.advance(59)
                assert (await env.sandbox.exec("echo hi")).ok
                await clock.advance(59)
                assert cloud.live()
                await clock.advance(2)
                await nothing_left(cloud)
                with pytest.raises(SandboxGone, match="without use"):
                    await env.step({"a": 1})
    finally:
        CLOCK.reset(token)


async def test_a_documented_limit_is_never_exceeded() -> None:
    """Twelve launches, three places, slow deletes: never more than three live, the others wait, all come to their turn.

    Scenario: I01, I04
    Mutation: pipeline does not wait in Creation.take_place, or Ownership gives the place back before the delete
    """
    with FakeCloud(quota=3) as cloud:
        slow = cloud.faults.add("delete", delay=0.05, times=None)
        provider = cloud.provider("limited", max_concurrency=3)

        async def one() -> None:
            async with launch("fake-env:1", provider=provider) as env:
                await env.reset()

        await asyncio.gather(*(one() for _ in range(12)))
        assert (cloud.peak, cloud.count("create"), slow.hits) == (3, 12, 12)
        held = [await launch("fake-env:1", provider=provider) for _ in range(3)]
        with pytest.raises(CreateTimeout, match="3"):
            await launch("fake-env:1", provider=provider, timeouts={"create": 0.1})
        for client in held:
            await client.close()
        await one()
        await nothing_left(cloud)
