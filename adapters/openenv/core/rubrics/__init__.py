"""Rewards out of composable parts."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv_sandbox.rubrics.base import Rubric as Rubric
    from openenv_sandbox.rubrics.containers import Gate as Gate
    from openenv_sandbox.rubrics.containers import RubricDict as RubricDict
    from openenv_sandbox.rubrics.containers import RubricList as RubricList
    from openenv_sandbox.rubrics.containers import Sequential as Sequential
    from openenv_sandbox.rubrics.containers import WeightedSum as WeightedSum
    from openenv_sandbox.rubrics.llm_judge import LLMJudge as LLMJudge
    from openenv_sandbox.rubrics.trajectory import (
        ExponentialDiscountingTrajectoryRubric as ExponentialDiscountingTrajectoryRubric,
    )
    from openenv_sandbox.rubrics.trajectory import TrajectoryRubric as TrajectoryRubric

_HOMES = {
    "ExponentialDiscountingTrajectoryRubric": "openenv_sandbox.rubrics.trajectory",
    "Gate": "openenv_sandbox.rubrics.containers",
    "LLMJudge": "openenv_sandbox.rubrics.llm_judge",
    "Rubric": "openenv_sandbox.rubrics.base",
    "RubricDict": "openenv_sandbox.rubrics.containers",
    "RubricList": "openenv_sandbox.rubrics.containers",
    "Sequential": "openenv_sandbox.rubrics.containers",
    "TrajectoryRubric": "openenv_sandbox.rubrics.trajectory",
    "WeightedSum": "openenv_sandbox.rubrics.containers",
}

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Gate",
    "LLMJudge",
    "Rubric",
    "RubricDict",
    "RubricList",
    "Sequential",
    "TrajectoryRubric",
    "WeightedSum",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
