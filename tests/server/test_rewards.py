"""Rewards as environments really make them, over the wire, on both faces of the client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import ExecutionError
from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server.app import create_app
from openenv_sandbox.server.environment import Environment
from openenv_sandbox.testing import serve_app

REWARDS: dict[str, Any] = {
    "int": 2,
    "float": 1.5,
    "none": None,
    "bool": True,
    "float32": np.float32(1.5),
    "int64": np.int64(2),
    "0-d": np.array(1.5),
    "(1,)": np.array([1.5]),
    "(2,)": np.array([1.5, 2.5]),
    "text": "one",
}
SEEN = {"int": 2, "float": 1.5, "none": None, "bool": True, "float32": 1.5, "int64": 2, "0-d": 1.5}


class Which(Action):
    name: str


class Rewarding(Environment[Which, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        return Observation()

    def step(self, action: Which, timeout_s: float | None = None) -> Observation:
        return Observation(reward=REWARDS[action.name])

    @property
    def state(self) -> State:
        return State()


@pytest.mark.anyio
async def test_a_reward_is_a_number_or_a_clear_error() -> None:
    """Numbers of every kind arrive as numbers, arrays of one or more are refused by name; both faces see the same.

    Scenario: K06
    Mutation: send what the environment gave as it is
    """

    def blocking(url: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        with GenericEnvClient(base_url=url).sync() as env:
            env.reset()
            for name in REWARDS:
                try:
                    seen[name] = env.step({"name": name}).reward
                except ExecutionError as error:
                    seen[name] = error.message
        return seen

    seen: dict[str, Any] = {}
    with serve_app(create_app(Rewarding, Which, Observation)) as url:
        async with GenericEnvClient(base_url=url) as env:
            await env.reset()
            for name in REWARDS:
                try:
                    seen[name] = (await env.step({"name": name})).reward
                except ExecutionError as error:
                    seen[name] = error.message
        import anyio.to_thread

        assert seen == await anyio.to_thread.run_sync(blocking, url)
    for name, reward in SEEN.items():
        assert seen[name] == reward, name
    for name in ("(1,)", "(2,)", "text"):
        assert "reward" in seen[name], name
