from __future__ import annotations

import pytest

from openenv_sandbox.breaker import Breaker, breaker
from openenv_sandbox.errors import CircuitOpen


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(clock: Clock) -> Breaker:
    return Breaker("fake", clock=clock)


def die(guard: Breaker, count: int, clock: Clock, *, every: float = 1.0) -> None:
    for _ in range(count):
        guard.check()
        guard.died("server exited with code 17\nlong log", after_ready=1.0)
        clock.now += every


def test_five_young_deaths_in_a_minute_suspend_creation(guard: Breaker, clock: Clock) -> None:
    """A sandbox that dies one second after ready is made five times, not for ever; the error counts and gives reasons.

    Scenario: A19
    Mutation: LIMIT is 6, or died() drops deaths after ready
    """
    die(guard, 5, clock)
    with pytest.raises(CircuitOpen, match=r"5 died young within 60 s \(server exited with code 17\)") as caught:
        guard.check()
    assert caught.value.reasons == ("server exited with code 17",)
    assert caught.value.provider == "fake"
    assert guard.is_open


def test_deaths_far_apart_or_late_do_not_count(guard: Breaker, clock: Clock) -> None:
    die(guard, 20, clock, every=16.0)
    for _ in range(10):
        guard.died("old age", after_ready=10.5)
    guard.check()
    clock.now += 60.0
    die(guard, 4, clock)
    clock.now += 60.0
    guard.died("never ready")
    guard.check()


def test_one_is_let_through_and_decides(guard: Breaker, clock: Clock) -> None:
    die(guard, 5, clock)
    guard.died("one that was under way")  # changes nothing
    guard.survived()  # nor does one that was made before
    clock.now = 65.0
    guard.check()
    with pytest.raises(CircuitOpen):
        guard.check()
    guard.died("again")
    clock.now += 119.0
    with pytest.raises(CircuitOpen, match="let through in 1 s"):
        guard.check()
    clock.now += 1.0
    guard.check()
    guard.survived()
    assert not guard.is_open
    die(guard, 4, clock)
    guard.check()


def test_a_probe_that_never_reports_is_replaced(guard: Breaker, clock: Clock) -> None:
    die(guard, 5, clock)
    clock.now = 100.0
    guard.check()
    clock.now += 60.0
    guard.check()


def test_the_pause_grows_to_a_bound(guard: Breaker, clock: Clock) -> None:
    die(guard, 5, clock)
    for _ in range(10):
        clock.now += 960.0
        guard.check()
        guard.died("again")
    clock.now += 959.0
    with pytest.raises(CircuitOpen):
        guard.check()
    clock.now += 1.0
    guard.check()


def test_reasons_hold_no_secret_and_no_escape(guard: Breaker, clock: Clock) -> None:
    for _ in range(5):
        guard.died("\x1b[31mexit API_KEY=abcdef12")
    with pytest.raises(CircuitOpen) as caught:
        guard.check()
    assert caught.value.reasons == ("exit API_KEY=***",)


def test_one_breaker_for_each_provider() -> None:
    assert breaker("x") is breaker("x") is not breaker("y")
