"""The base of evaluation harnesses."""

from openenv_sandbox.evals import EvalHarness as EvalHarness

__all__ = [
    "EvalHarness",
]
