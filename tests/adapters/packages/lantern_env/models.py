from __future__ import annotations

from openenv.core.env_server import Action, Observation, State
from pydantic import Field


class LanternAction(Action):
    lit: bool = Field(..., description="Whether to light it")


class LanternObservation(Observation):
    brightness: int = 0
    reward: float = Field(0.0)


class BurntOut(LanternObservation):
    ashes: int = 1


class LanternState(State):
    episode_id: str | None = None
    step_count: int
    history: list[bool] = Field(default_factory=list)
