"""Evaluations."""

from openenv_sandbox.evals import EvalConfig as EvalConfig
from openenv_sandbox.evals import EvalHarness as EvalHarness
from openenv_sandbox.evals import EvalResult as EvalResult
from openenv_sandbox.evals.inspect_harness import InspectAIHarness as InspectAIHarness

__all__ = [
    "EvalConfig",
    "EvalHarness",
    "EvalResult",
    "InspectAIHarness",
]
