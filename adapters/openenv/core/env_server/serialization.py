"""Observations and actions as plain data."""

from openenv_sandbox.server.serialization import deserialize_action as deserialize_action
from openenv_sandbox.server.serialization import (
    deserialize_action_with_preprocessing as deserialize_action_with_preprocessing,
)
from openenv_sandbox.server.serialization import serialize_observation as serialize_observation

__all__ = [
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
]
