from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction

from .client import RollsEnv

__all__ = ["CallToolAction", "ListToolsAction", "RollsEnv"]
