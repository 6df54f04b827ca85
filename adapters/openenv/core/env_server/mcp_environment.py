"""An environment on a FastMCP server."""

from openenv_sandbox.server.mcp_environment import MCP_TOOL_CALL_TIMEOUT as MCP_TOOL_CALL_TIMEOUT
from openenv_sandbox.server.mcp_environment import VALID_MODES as VALID_MODES
from openenv_sandbox.server.mcp_environment import MCPEnvironment as MCPEnvironment
from openenv_sandbox.server.mcp_environment import get_server_tools as get_server_tools

__all__ = [
    "MCP_TOOL_CALL_TIMEOUT",
    "VALID_MODES",
    "MCPEnvironment",
    "get_server_tools",
]
