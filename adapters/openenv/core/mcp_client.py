"""Clients of environments that offer tools."""

from openenv_sandbox.client.tools import MCPClientBase as MCPClientBase
from openenv_sandbox.client.tools import MCPToolClient as MCPToolClient

__all__ = [
    "MCPClientBase",
    "MCPToolClient",
]
