"""Rubrics that score whole episodes."""

from openenv_sandbox.rubrics.trajectory import (
    ExponentialDiscountingTrajectoryRubric as ExponentialDiscountingTrajectoryRubric,
)
from openenv_sandbox.rubrics.trajectory import TrajectoryRubric as TrajectoryRubric

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "TrajectoryRubric",
]
