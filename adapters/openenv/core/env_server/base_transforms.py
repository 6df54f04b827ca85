"""Transforms."""

from openenv_sandbox.server.environment import CompositeTransform as CompositeTransform
from openenv_sandbox.server.environment import NullTransform as NullTransform

__all__ = [
    "CompositeTransform",
    "NullTransform",
]
