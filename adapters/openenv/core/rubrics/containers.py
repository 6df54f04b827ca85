"""Rubrics made of rubrics."""

from openenv_sandbox.rubrics.containers import Gate as Gate
from openenv_sandbox.rubrics.containers import RubricDict as RubricDict
from openenv_sandbox.rubrics.containers import RubricList as RubricList
from openenv_sandbox.rubrics.containers import Sequential as Sequential
from openenv_sandbox.rubrics.containers import WeightedSum as WeightedSum

__all__ = [
    "Gate",
    "RubricDict",
    "RubricList",
    "Sequential",
    "WeightedSum",
]
