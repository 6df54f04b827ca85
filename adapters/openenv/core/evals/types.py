"""The data of evaluations."""

from openenv_sandbox.evals import EvalConfig as EvalConfig
from openenv_sandbox.evals import EvalResult as EvalResult

__all__ = [
    "EvalConfig",
    "EvalResult",
]
