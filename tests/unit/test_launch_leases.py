from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import ConfigError, launch, sandbox
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.keepalive import IDLE_S, LEASE_S, lease_s
from openenv_sandbox.spec import Timeouts
from openenv_sandbox.testing.fake import FULL, FakeClock, FakeCloud
from tests.unit.launch_harness import nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.testing.fake_box import Box

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    clock = FakeClock()
    token = CLOCK.set(clock)
    yield clock
    CLOCK.reset(token)


@pytest.fixture
def cloud(clock: FakeClock) -> Iterator[FakeCloud]:
    with FakeCloud(clock=clock) as cloud:
        yield cloud


def _only(cloud: FakeCloud) -> Box:
    (box,) = cloud.live()
    return box


async def test_a_short_lease_is_renewed_while_the_owner_lives(cloud: FakeCloud, clock: FakeClock) -> None:
    """Three leases and twenty idle minutes pass, the next step works; without its owner it ends within one lease.

    Scenario: A01, B01, B02
    Mutation: pipeline does not start the keep-alive, or gives the backend no lifetime at create
    """
    client = await launch("fake-env:1", provider=cloud.provider())
    box = _only(cloud)
    assert box.args["lifetime_s"] == LEASE_S
    assert {name for name in box.labels if name.startswith("oe-")} == {"oe-install", "oe-run", "oe-key", "oe-expires"}
    for _ in range(4):
        await clock.advance(LEASE_S / 2)
    await client.step({"a": 1})
    assert len(box.extended) >= 4
    renewed = len(box.extended)
    await client.sandbox.aclose()  # as if its owner were killed: nothing is renewed any more
    await clock.advance(LEASE_S - 1)
    assert len(box.extended) == renewed
    assert cloud.live()
    await clock.advance(LEASE_S)
    assert not cloud.live()
    await client.disconnect()


async def test_renewing_never_shortens(clock: FakeClock) -> None:
    """A longer lifetime that the user asked for survives the keep-alive, where the backend sets what it is told.

    Scenario: B06
    Mutation: KeepAlive._renew always extends
    """
    with FakeCloud(clock=clock, exact_extend=True) as cloud:
        async with launch("fake-env:1", provider=cloud.provider()) as env:
            end = await env.sandbox.extend(36000)
            await clock.advance(3000)
            assert _only(cloud).expires_at == end
            await clock.advance(36000)
            assert cloud.live()


async def test_a_lifetime_the_user_said_is_given_exactly(cloud: FakeCloud, clock: FakeClock) -> None:
    """Each timer reaches the backend in its own field: the lifetime is none of the others.

    Scenario: B08
    Mutation: FakeProvider.create gives timeouts.create, or the spec's lifetime is replaced by the lease
    """
    timers = {"create": 30, "ready": 60, "exec": 90, "lifetime": 3600, "idle": 600, "episode": 1000, "margin": 100}
    async with sandbox("fake-env:1", provider=cloud.provider(), timeouts=timers):
        box = _only(cloud)
        assert box.args["lifetime_s"] == 3600
        assert box.args["idle_s"] is None
    await nothing_left(cloud)


def test_the_lifetime_covers_the_whole_use() -> None:
    """Setup, episode, grading and margin fit; a shorter lifetime is refused, also one that equals the episode.

    Scenario: B09
    Mutation: Timeouts.shortest_lifetime forgets a part
    """
    timers = Timeouts(ready=60, episode=600, margin=120)
    assert timers.effective_lifetime == 780
    with pytest.raises(ValueError, match="60 \\+ 600 \\+ 120"):
        Timeouts(ready=60, episode=600, margin=120, lifetime=600)


async def test_a_lifetime_shorter_than_the_use_is_refused(cloud: FakeCloud) -> None:
    """Three seconds is no lifetime.

    Scenario: B07
    Mutation: Timeouts does not check its lifetime
    """
    with pytest.raises(ConfigError, match="lifetime"):
        await launch("fake-env:1", provider=cloud.provider(), timeouts={"lifetime": 3})
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("kind", "timers", "lease"),
    [
        ("server-extendable", {}, LEASE_S),
        ("server-extendable", {"ready": 10, "episode": 10, "margin": 0}, 20),
        ("server-extendable", {"ready": 1000}, 1120),
        ("server-extendable", {"lifetime": 9000}, 9000),
        ("server-fixed", {}, 4020),
        ("idle-only", {}, 4020),
        ("none", {}, 4020),
    ],
)
def test_the_lifetime_at_create(kind: Any, timers: dict[str, float], lease: float) -> None:
    """Extendable: a short lease that outlives getting ready; else the whole use.

    Scenario: B07
    Mutation: lease_s gives LEASE_S to backends that cannot extend
    """
    from dataclasses import replace

    assert lease_s(Timeouts(**timers), replace(FULL, lifetime=kind)) == lease


async def test_an_idle_timer_is_fed_while_in_use(clock: FakeClock) -> None:
    """The backend's own idle clock counts no traffic: it is fed, and no more once the client is closed or killed.

    Scenario: B01, B11
    Mutation: KeepAlive never calls keep_alive
    """
    with FakeCloud(clock=clock) as cloud:
        provider = cloud.provider(lifetime="idle-only")
        client = await launch("fake-env:1", provider=provider, options={"idle_s": 3 * IDLE_S})
        for _ in range(9):
            await clock.advance(IDLE_S)
        await client.step({"a": 1})
        fed = cloud.count("keep_alive")
        assert fed >= 9
        await client.sandbox.aclose()
        await clock.advance(2 * IDLE_S)
        assert cloud.count("keep_alive") == fed
        await clock.advance(2 * IDLE_S)
        assert not cloud.live()
        await client.disconnect()


async def test_an_idle_timer_beside_a_lease(clock: FakeClock) -> None:
    """A backend that ends a sandbox both at a time and when unused says how often it must be fed.

    Scenario: B01
    Mutation: KeepAlive feeds idle-only backends alone, or every IDLE_S
    """
    with FakeCloud(clock=clock) as cloud:
        provider = cloud.provider(keep_alive_s=10.0)
        client = await launch("fake-env:1", provider=provider, options={"idle_s": 25.0})
        for _ in range(3 * int(LEASE_S / 10)):
            await clock.advance(10)
        await client.step({"a": 1})
        assert cloud.count("keep_alive") >= 3 * LEASE_S / 10
        assert _only(cloud).extended
        await client.sandbox.aclose()
        await clock.advance(30)
        assert not cloud.live()
        await client.disconnect()


async def test_a_failing_renewal_is_tried_again(cloud: FakeCloud, clock: FakeClock) -> None:
    rule = cloud.faults.add("extend", status=500, skip=1, times=2)
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        for _ in range(6):
            await clock.advance(LEASE_S / 3)
        await env.step({"a": 1})
    assert rule.hits == 2


async def test_stopping_is_one_delete(cloud: FakeCloud) -> None:
    """Nothing connects, renews or looks before the delete.

    Scenario: B14
    Mutation: Ownership._delete extends or attaches first
    """
    async with sandbox("fake-env:1", provider=cloud.provider()) as box:
        before = len(cloud.calls)
        await box.stop()
        await box.stop()
    assert [call.op for call in cloud.calls[before:]] == ["delete"]


async def test_a_detached_sandbox_keeps_its_lifetime(cloud: FakeCloud, clock: FakeClock) -> None:
    from openenv_sandbox.journal import Journal

    async with sandbox("fake-env:1", provider=cloud.provider()) as box:
        whole = box.spec.timeouts.effective_lifetime
        began = clock.time()
        await clock.advance(100)
        await box.detach()
    assert abs((_only(cloud).expires_at or 0) - (began + whole)) < 1
    assert [row.state for row in await (await Journal.open()).rows()] == ["detached"]
    await clock.advance(whole)
    assert not cloud.live()


async def test_the_first_call_after_a_pause(cloud: FakeCloud) -> None:
    """Connecting is tried again after a reset; a step is never repeated.

    Scenario: B13
    Mutation: the client repeats a step by itself
    """
    async with launch("fake-env:1", provider=cloud.provider()) as env:
        await env.reset()
        await env.sandbox.pause()
        await env.sandbox.resume()
        result = await env.step({"a": 1})
    assert result.observation["step"] == 1
