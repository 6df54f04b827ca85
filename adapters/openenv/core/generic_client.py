"""The client that knows no types."""

from openenv_sandbox.client.generic import GenericAction as GenericAction
from openenv_sandbox.client.generic import GenericEnvClient as GenericEnvClient

__all__ = [
    "GenericAction",
    "GenericEnvClient",
]
