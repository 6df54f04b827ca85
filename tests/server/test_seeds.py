from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from openenv_sandbox import Action, Environment, Observation, State, create_app
from openenv_sandbox.server import calls
from tests.server.peers import serving

pytestmark = pytest.mark.anyio


class Draw(Action):
    pass


class Drawn(Observation):
    number: float = 0.0


class Lottery(Environment[Draw, Drawn, State]):
    """Draws from a generator of its own, seeded by reset."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random()

    def reset(self, seed: int | None = None) -> Drawn:
        self._random = random.Random(seed)
        return Drawn(number=self._random.random())

    def step(self, action: Draw) -> Drawn:
        return Drawn(number=self._random.random())

    @property
    def state(self) -> State:
        return State()


class Unseeded(Lottery):
    """Cannot honour a seed, and so does not take one."""

    def reset(self) -> Drawn:  # type: ignore[override]
        return Drawn(number=random.random())


async def episode(server: Any, reset: dict[str, Any]) -> list[float]:
    peer = await server.connect()
    numbers = [(await peer.reset(**reset))["data"]["observation"]["number"]]
    for _ in range(5):
        numbers.append((await peer.call({"type": "step", "data": {}}))["data"]["observation"]["number"])
        await asyncio.sleep(0)
    peer.drop()
    return numbers


async def test_a_seed_decides_the_episode_also_among_concurrent_sessions() -> None:
    """Eight sessions at once, half of them seeded: equal seeds give equal episodes, others do not.

    Scenario: K04
    Mutation: drop ``seed`` among the keywords of reset on the WebSocket, or share one environment between sessions
    """
    async with serving(create_app(Lottery, Draw, Drawn)) as server:
        wishes: list[dict[str, Any]] = [{"seed": 7}, {}, {"seed": 7}, {}, {"seed": 7}, {}, {"seed": 8}, {}]
        seeded, first, again, second, third, _, other, _ = await asyncio.gather(*(episode(server, w) for w in wishes))
    assert seeded == again == third
    assert seeded != other
    assert first != second


async def test_an_environment_without_a_seed_says_that_it_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The wire stays as it was, so the server's log says it, once for a class.

    Scenario: K04
    Mutation: drop unknown keywords without a word
    """
    calls._tell_ignored.cache_clear()
    with caplog.at_level(logging.WARNING, logger="openenv.server"):
        async with serving(create_app(Unseeded, Draw, Drawn)) as server:
            await episode(server, {"seed": 7})
            await episode(server, {"seed": 7})
    assert [r.message for r in caplog.records] == ["Unseeded.reset does not take seed: ignored"]
