"""Evaluations."""

from openenv_sandbox.evals import EvalConfig as EvalConfig
from openenv_sandbox.evals import EvalHarness as EvalHarness
from openenv_sandbox.evals import EvalResult as EvalResult

__all__ = [
    "EvalConfig",
    "EvalHarness",
    "EvalResult",
]
