"""The base of all rubrics."""

from openenv_sandbox.rubrics.base import Rubric as Rubric

__all__ = [
    "Rubric",
]
