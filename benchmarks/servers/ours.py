"""The trivial environment on our server, as shipped: capacity, session timeout, limits and token are on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from payloads import PAYLOADS

from openenv_sandbox.server import Action, ConcurrencyConfig, Environment, Observation, State, create_app


class TrivialAction(Action):
    kind: str = "100B"


class TrivialObservation(Observation):
    payload: Any = None


class TrivialEnvironment(Environment[TrivialAction, TrivialObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id="bench", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kw: Any) -> TrivialObservation:
        self._state = State(episode_id=episode_id or "bench", step_count=0)
        return TrivialObservation(payload="", done=False, reward=0.0)

    def step(self, action: TrivialAction, timeout_s: float | None = None, **kw: Any) -> TrivialObservation:
        self._state.step_count += 1
        return TrivialObservation(payload=PAYLOADS[action.kind], done=False, reward=1.0)

    @property
    def state(self) -> State:
        return self._state


class InlineEnvironment(TrivialEnvironment):
    BLOCKING = False


config = ConcurrencyConfig(max_concurrent_envs=300, session_timeout=3600)
app = create_app(TrivialEnvironment, TrivialAction, TrivialObservation, concurrency_config=config)
inline = create_app(InlineEnvironment, TrivialAction, TrivialObservation, concurrency_config=config)
