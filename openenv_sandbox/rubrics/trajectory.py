"""Rubrics that score an episode when it is over."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from openenv_sandbox.rubrics.base import Rubric

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from openenv_sandbox.rubrics.base import Score


class TrajectoryRubric(Rubric):
    """Collects the steps of an episode and scores them when an observation is done.

    Args:
        intermediate_reward: Score of every step before that.
    """

    def __init__(self, intermediate_reward: float = 0.0) -> None:
        super().__init__()
        self.intermediate_reward = intermediate_reward
        self._trajectory: list[tuple[Any, Any]] = []

    @property
    def trajectory(self) -> list[tuple[Any, Any]]:
        """A copy of the steps so far: pairs of action and observation."""
        return list(self._trajectory)

    def forward(self, action: Any, observation: Any) -> Score:
        """Collect the step; the episode's score when the observation is done."""
        self._trajectory.append((action, observation))
        if getattr(observation, "done", False):
            return self.score_trajectory(self.trajectory)
        return self.intermediate_reward

    @abstractmethod
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> Score:
        """The score of a whole episode.

        Args:
            trajectory: Pairs of action and observation, in order.
        """

    @abstractmethod
    def compute_step_rewards(self) -> list[float] | Awaitable[list[float]]:
        """The reward of each step so far, by the score of the episode."""

    def reset(self) -> None:
        """Forget the steps."""
        self._trajectory.clear()

    def state_dict(self) -> dict[str, Any]:
        """The settings, not the steps."""
        return {**super().state_dict(), "intermediate_reward": self.intermediate_reward}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over settings."""
        super().load_state_dict(state)
        self.intermediate_reward = state.get("intermediate_reward", self.intermediate_reward)


class ExponentialDiscountingTrajectoryRubric(TrajectoryRubric):
    """Gives each step the episode's score, discounted by its distance to the end.

    Step t of T gets ``gamma ** (T - 1 - t)`` times the score.

    Args:
        gamma: Discount, from 0 to 1.
        intermediate_reward: Score of every step before the end.

    Raises:
        ValueError: ``gamma`` is outside that range.
    """

    def __init__(self, gamma: float = 0.99, intermediate_reward: float = 0.0) -> None:
        super().__init__(intermediate_reward)
        self.gamma = _checked(gamma)

    def compute_step_rewards(self) -> list[float] | Awaitable[list[float]]:
        """The discounted rewards; a coroutine of them where the score is one."""
        if not self._trajectory:
            return []
        score = self.score_trajectory(self.trajectory)
        return self._later(score) if inspect.isawaitable(score) else self._discounted(score)

    async def _later(self, pending: Awaitable[float]) -> list[float]:
        return self._discounted(await pending)

    def _discounted(self, score: float) -> list[float]:
        last = len(self._trajectory) - 1
        return [self.gamma ** (last - step) * score for step in range(last + 1)]

    def state_dict(self) -> dict[str, Any]:
        """The settings, not the steps."""
        return {**super().state_dict(), "gamma": self.gamma}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over settings.

        Raises:
            ValueError: ``gamma`` is outside 0 to 1.
        """
        super().load_state_dict(state)
        self.gamma = _checked(state.get("gamma", self.gamma))


def _checked(gamma: float) -> float:
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must be from 0 to 1, not {gamma!r}")
    return gamma
