"""Clients of an environment server: asynchronous, blocking, typed, generic, and for tools."""

from __future__ import annotations

from openenv_sandbox.client.base import EnvClient
from openenv_sandbox.client.generic import GenericAction, GenericEnvClient, GenericObservation
from openenv_sandbox.client.result import StepResult
from openenv_sandbox.client.sync import SyncEnvClient
from openenv_sandbox.client.tools import MCPClientBase, MCPToolClient

__all__ = [
    "EnvClient",
    "GenericAction",
    "GenericEnvClient",
    "GenericObservation",
    "MCPClientBase",
    "MCPToolClient",
    "StepResult",
    "SyncEnvClient",
]
