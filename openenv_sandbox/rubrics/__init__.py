"""Rewards out of composable parts: score one step, gate it, weigh it, or score the whole episode."""

from __future__ import annotations

from openenv_sandbox.rubrics.base import Rubric
from openenv_sandbox.rubrics.containers import Gate, RubricDict, RubricList, Sequential, WeightedSum
from openenv_sandbox.rubrics.llm_judge import LLMJudge
from openenv_sandbox.rubrics.trajectory import ExponentialDiscountingTrajectoryRubric, TrajectoryRubric

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
