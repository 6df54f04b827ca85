"""The blocking client."""

from openenv_sandbox.client.sync import SyncEnvClient as SyncEnvClient

__all__ = [
    "SyncEnvClient",
]
