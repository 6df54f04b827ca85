"""What may be asked of a model that is trained."""

from openenv_sandbox.harness import training_sampling as training_sampling

__all__ = [
    "training_sampling",
]
