"""Tool calls and JSON-RPC."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv_sandbox.models import Action as Action
    from openenv_sandbox.models import CallToolAction as CallToolAction
    from openenv_sandbox.models import CallToolObservation as CallToolObservation
    from openenv_sandbox.models import ListToolsAction as ListToolsAction
    from openenv_sandbox.models import ListToolsObservation as ListToolsObservation
    from openenv_sandbox.models import Observation as Observation
    from openenv_sandbox.models import Tool as Tool
    from openenv_sandbox.models import ToolError as ToolError
    from openenv_sandbox.models import ToolErrorType as ToolErrorType
    from openenv_sandbox.server.mcp import JsonRpcRequest as JsonRpcRequest
    from openenv_sandbox.server.rpc_types import JsonRpcError as JsonRpcError
    from openenv_sandbox.server.rpc_types import JsonRpcErrorCode as JsonRpcErrorCode
    from openenv_sandbox.server.rpc_types import JsonRpcResponse as JsonRpcResponse
    from openenv_sandbox.server.rpc_types import McpMethod as McpMethod
    from openenv_sandbox.server.rpc_types import WSMCPMessage as WSMCPMessage
    from openenv_sandbox.server.rpc_types import WSMCPResponse as WSMCPResponse
    from openenv_sandbox.server.toolspec import RESERVED_TOOL_NAMES as RESERVED_TOOL_NAMES

_HOMES = {
    "Action": "openenv_sandbox.models",
    "CallToolAction": "openenv_sandbox.models",
    "CallToolObservation": "openenv_sandbox.models",
    "JsonRpcError": "openenv_sandbox.server.rpc_types",
    "JsonRpcErrorCode": "openenv_sandbox.server.rpc_types",
    "JsonRpcRequest": "openenv_sandbox.server.mcp",
    "JsonRpcResponse": "openenv_sandbox.server.rpc_types",
    "ListToolsAction": "openenv_sandbox.models",
    "ListToolsObservation": "openenv_sandbox.models",
    "McpMethod": "openenv_sandbox.server.rpc_types",
    "Observation": "openenv_sandbox.models",
    "RESERVED_TOOL_NAMES": "openenv_sandbox.server.toolspec",
    "Tool": "openenv_sandbox.models",
    "ToolError": "openenv_sandbox.models",
    "ToolErrorType": "openenv_sandbox.models",
    "WSMCPMessage": "openenv_sandbox.server.rpc_types",
    "WSMCPResponse": "openenv_sandbox.server.rpc_types",
}

__all__ = [
    "RESERVED_TOOL_NAMES",
    "Action",
    "CallToolAction",
    "CallToolObservation",
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "ListToolsAction",
    "ListToolsObservation",
    "McpMethod",
    "Observation",
    "Tool",
    "ToolError",
    "ToolErrorType",
    "WSMCPMessage",
    "WSMCPResponse",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
