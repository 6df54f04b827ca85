"""Evaluations by Inspect AI."""

from openenv_sandbox.evals.inspect_harness import InspectAIHarness as InspectAIHarness

__all__ = [
    "InspectAIHarness",
]
