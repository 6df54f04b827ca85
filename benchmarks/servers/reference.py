"""The same trivial environment on the published package, run in its own virtual environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State
from payloads import PAYLOADS


class TrivialAction(Action):
    kind: str = "100B"


class TrivialObservation(Observation):
    payload: Any = None


class TrivialEnvironment(Environment):
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


config = ConcurrencyConfig(max_concurrent_envs=300, session_timeout=3600)
app = create_app(TrivialEnvironment, TrivialAction, TrivialObservation, concurrency_config=config)
