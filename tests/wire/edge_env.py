"""An environment at the edges of the wire: raises, NaN, slow steps, big observations; served as ``edge_env:app``."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server.app import create_app
from openenv_sandbox.server.environment import Environment
from openenv_sandbox.server.types import ConcurrencyConfig


class EdgeAction(Action):
    kind: str = "ok"
    seconds: float = 0.0
    size: int = 0


class EdgeObservation(Observation):
    v: str = ""


class EdgeEnvironment(Environment[EdgeAction, EdgeObservation, State]):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(float(os.environ.get("EDGE_FACTORY_SECONDS", "0")))
        self.closed = False
        self.count = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EdgeObservation:
        return EdgeObservation(v="reset")

    def step(self, action: EdgeAction, timeout_s: float | None = None, **kwargs: Any) -> EdgeObservation:
        self.count += 1
        if action.kind == "raise":
            raise RuntimeError("boom")
        if action.kind == "nan":
            return EdgeObservation(v="n", reward=float("nan"))
        if action.kind == "big":
            return EdgeObservation(v="x" * action.size)
        time.sleep(action.seconds)
        where = threading.current_thread().name
        return EdgeObservation(v=f"closed={self.closed} timeout_s={timeout_s} thread={where}", reward=1, done=True)

    @property
    def state(self) -> State:
        return State(episode_id="x", step_count=self.count)

    def close(self) -> None:
        self.closed = True


_timeout = os.environ.get("EDGE_SESSION_TIMEOUT")

app = create_app(
    EdgeEnvironment,
    EdgeAction,
    EdgeObservation,
    env_name="edge",
    concurrency_config=ConcurrencyConfig(session_timeout=float(_timeout) if _timeout else None),
)
