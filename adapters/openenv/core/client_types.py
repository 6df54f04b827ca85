"""What a client returns."""

from openenv_sandbox.client.result import StepResult as StepResult

__all__ = [
    "StepResult",
]
