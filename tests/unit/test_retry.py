from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import retry
from openenv_sandbox.errors import (
    AuthError,
    CreateTimeout,
    OpenEnvError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from openenv_sandbox.provider import Prepared, Sandbox, SandboxProvider
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.fake import FakeCloud

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec(image="fake-env:1")


class Time:
    """A clock that only sleeping moves, and what was slept."""

    def __init__(self, rng: float = 0.5) -> None:
        self.now, self.slept, self.rng = 0.0, [], rng  # type: float, list[float], float

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def policy(self, **kw: Any) -> retry.Policy:
        return retry.Policy(clock=lambda: self.now, sleep=self.sleep, rng=lambda: self.rng, **kw)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


class Failing:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_waits_grow_with_jitter_up_to_a_bound(time: Time) -> None:
    busy = [ProviderUnavailable("busy", retryable=True) for _ in range(8)]
    assert await retry.call(Failing(*busy), deadline=300, policy=time.policy()) == "done"
    assert time.slept == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


async def test_retry_after_is_obeyed(time: Time) -> None:
    """Never earlier than asked, spread a little behind it.

    Scenario: I02
    Mutation: Policy.wait ignores retry_after
    """
    fn = Failing(RateLimited("slow", retry_after=7.0), RateLimited("slow", retry_after=40.0))
    assert await retry.call(fn, deadline=300, policy=time.policy()) == "done"
    assert [asked <= slept <= asked * 1.25 for asked, slept in zip((7.0, 40.0), time.slept, strict=True)] == [
        True,
        True,
    ]


async def test_a_wait_that_does_not_fit_is_not_begun(time: Time) -> None:
    with pytest.raises(RateLimited):
        await retry.call(Failing(RateLimited("slow", retry_after=61.0)), deadline=60, policy=time.policy())
    assert time.slept == []


@pytest.mark.parametrize(
    "error",
    [QuotaExceeded("full"), AuthError("no"), ProviderUnavailable("lost", outcome="unknown", retryable=True)],
)
async def test_what_waiting_does_not_help_is_not_repeated(error: OpenEnvError, time: Time) -> None:
    """A quota at create is raised at once and stays a quota.

    Scenario: I03
    Mutation: call() repeats whatever is a ProviderError
    """
    fn = Failing(error)
    with pytest.raises(type(error)):
        await retry.call(fn, deadline=60, policy=time.policy(), dedupes=False)
    assert fn.calls == 1


async def test_an_unknown_outcome_is_repeated_where_twice_is_once(time: Time) -> None:
    fn = Failing(ProviderUnavailable("lost", outcome="unknown", retryable=True))
    assert await retry.call(fn, deadline=60, policy=time.policy()) == "done"


async def test_an_sdk_error_that_says_slow_down_is_translated(time: Time) -> None:
    assert await retry.call(Failing(RuntimeError("Too Many Requests")), deadline=60, policy=time.policy()) == "done"
    with pytest.raises(ValueError, match="bad"):
        await retry.call(Failing(ValueError("bad")), deadline=60, policy=time.policy())


async def test_a_policy_may_forbid_repeating(time: Time) -> None:
    with pytest.raises(RateLimited):
        await retry.call(Failing(RateLimited("slow")), deadline=60, policy=retry.NEVER)


# ------------------------------------------------------------------------------------------------------ create


async def make(provider: SandboxProvider, time: Time, key: str = "oe-1", **kw: Any) -> Sandbox:
    prepared = Prepared("fake-env:1")
    return await retry.create(
        provider, prepared, SPEC, key=key, deadline=kw.pop("deadline", 60), policy=time.policy(), **kw
    )


async def test_a_create_whose_reply_is_lost_is_looked_up_and_asked_for_again(cloud: FakeCloud, time: Time) -> None:
    lost = cloud.faults.add("create", when="after", status=0)
    provider = cloud.provider(start="exec")()
    sandbox = await make(provider, time)
    assert lost.hits == 1
    assert [call.op for call in cloud.calls] == ["create", "find", "create"]
    assert [box.id for box in cloud.live()] == [sandbox.ref.id]


async def test_where_twice_would_be_two_the_lost_one_is_attached(cloud: FakeCloud, time: Time) -> None:
    cloud.dedupes = False
    lost = cloud.faults.add("create", when="after", status=0)
    provider = cloud.provider(start="exec", dedupes_key=False)()
    sandbox = await make(provider, time)
    assert lost.hits == 1
    assert [call.op for call in cloud.calls] == ["create", "find", "info"]
    assert [box.id for box in cloud.live()] == [sandbox.ref.id]


async def test_where_twice_would_be_two_nothing_found_is_an_error(cloud: FakeCloud, time: Time) -> None:
    lost = cloud.faults.add("create", when="before", status=0)
    provider = cloud.provider(start="exec", dedupes_key=False)()
    with pytest.raises(ProviderUnavailable) as caught:
        await make(provider, time)
    assert (lost.hits, caught.value.outcome, cloud.count("create")) == (1, "unknown", 1)


async def test_a_second_sandbox_of_one_key_is_deleted(cloud: FakeCloud, time: Time) -> None:
    cloud.dedupes = False
    provider = cloud.provider(start="exec", dedupes_key=False)()
    await make(provider, time)
    cloud.faults.add("create", when="after", status=0)
    sandbox = await make(provider, time)
    assert [box.id for box in cloud.live()] == [sandbox.ref.id]


async def test_a_look_up_that_fails_leaves_the_first_error(cloud: FakeCloud, time: Time) -> None:
    cloud.faults.add("create", when="before", status=0)
    cloud.faults.add("find", status=403, times=None)
    with pytest.raises(ProviderUnavailable, match="broke during create"):
        await make(cloud.provider(start="exec")(), time)


async def test_a_quota_at_create_is_one_request(cloud: FakeCloud, time: Time) -> None:
    cloud.quota = 0
    with pytest.raises(QuotaExceeded):
        await make(cloud.provider(start="exec")(), time)
    assert cloud.count("create") == 1


class Still:
    """A clock that stands still while others sleep by it, until the test lets it go on."""

    def __init__(self) -> None:
        self.now, self.sleepers = 0.0, 0
        self.two_sleep, self.go = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.sleepers += 1
        if self.sleepers == 2:
            self.two_sleep.set()
        await self.go.wait()


async def test_one_refusal_slows_everybody(cloud: FakeCloud, time: Time) -> None:
    """After a 429 nobody asks before the time is over: no storm of refusals.

    Scenario: I01
    Mutation: create() does not call turn.pause
    """
    clock = Still()
    refused = cloud.faults.add("create", status=429, retry_after=30.0)
    policy = retry.Policy(clock=lambda: clock.now, sleep=clock.sleep)
    provider, turn = cloud.provider(start="exec")(), retry.Gate(starting=1, clock=lambda: clock.now)
    creates = [
        asyncio.create_task(
            retry.create(provider, Prepared("x"), SPEC, key=f"oe-{n}", deadline=600, policy=policy, turn=turn)
        )
        for n in range(5)
    ]
    await asyncio.wait_for(clock.two_sleep.wait(), 60)  # the one that was refused, and the next, which has not asked
    assert cloud.count("create") == 1
    clock.now += 60
    clock.go.set()
    await asyncio.wait_for(asyncio.gather(*creates), 60)
    assert refused.hits == 1
    assert sum(call.status == 429 for call in cloud.calls) == 1


async def test_a_pause_longer_than_the_create_timer_is_an_error_at_once(cloud: FakeCloud, time: Time) -> None:
    turn = retry.Gate(clock=lambda: time.now)
    turn.pause(100)
    with pytest.raises(RateLimited, match="longer than is left"):
        await make(cloud.provider(start="exec")(), time, turn=turn)
    assert cloud.count("create") == 0


async def test_a_turn_that_does_not_come_is_a_create_timeout(cloud: FakeCloud, time: Time) -> None:
    turn = retry.Gate(starting=1)
    async with turn.starting(timeout=1):
        with pytest.raises(CreateTimeout, match="1 of 1 in use"):
            await make(cloud.provider(start="exec")(), time, turn=turn, deadline=0.01)
    assert cloud.count("create") == 0
