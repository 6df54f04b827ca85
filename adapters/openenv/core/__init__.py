"""Environments, their clients and their servers."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv_sandbox.client import EnvClient as EnvClient
    from openenv_sandbox.client import GenericAction as GenericAction
    from openenv_sandbox.client import GenericEnvClient as GenericEnvClient
    from openenv_sandbox.client import MCPClientBase as MCPClientBase
    from openenv_sandbox.client import MCPToolClient as MCPToolClient
    from openenv_sandbox.client import SyncEnvClient as SyncEnvClient
    from openenv_sandbox.errors import CapacityError as SessionCapacityError
    from openenv_sandbox.errors import FactoryError as EnvironmentFactoryError
    from openenv_sandbox.errors import OpenEnvError as OpenEnvError
    from openenv_sandbox.llm import AnthropicClient as AnthropicClient
    from openenv_sandbox.llm import LLMClient as LLMClient
    from openenv_sandbox.llm import LLMResponse as LLMResponse
    from openenv_sandbox.llm import OpenAIClient as OpenAIClient
    from openenv_sandbox.llm import ToolCall as ToolCall
    from openenv_sandbox.llm import create_llm_client as create_llm_client
    from openenv_sandbox.models import Action as Action
    from openenv_sandbox.models import CallToolAction as CallToolAction
    from openenv_sandbox.models import CallToolObservation as CallToolObservation
    from openenv_sandbox.models import ListToolsAction as ListToolsAction
    from openenv_sandbox.models import ListToolsObservation as ListToolsObservation
    from openenv_sandbox.models import Observation as Observation
    from openenv_sandbox.models import State as State
    from openenv_sandbox.models import Tool as Tool
    from openenv_sandbox.models import ToolError as ToolError
    from openenv_sandbox.models import ToolErrorType as ToolErrorType
    from openenv_sandbox.server.app import HTTPEnvServer as HTTPEnvServer
    from openenv_sandbox.server.app import create_app as create_app
    from openenv_sandbox.server.app import create_fastapi_app as create_fastapi_app
    from openenv_sandbox.server.environment import CompositeTransform as CompositeTransform
    from openenv_sandbox.server.environment import Environment as Environment
    from openenv_sandbox.server.environment import NullTransform as NullTransform
    from openenv_sandbox.server.environment import Transform as Transform
    from openenv_sandbox.server.http import HealthResponse as HealthResponse
    from openenv_sandbox.server.mcp import JsonRpcRequest as JsonRpcRequest
    from openenv_sandbox.server.mcp_environment import MCPEnvironment as MCPEnvironment
    from openenv_sandbox.server.protocols import Message as Message
    from openenv_sandbox.server.protocols import ModelTokenizer as ModelTokenizer
    from openenv_sandbox.server.rpc_types import HealthStatus as HealthStatus
    from openenv_sandbox.server.rpc_types import JsonRpcError as JsonRpcError
    from openenv_sandbox.server.rpc_types import JsonRpcErrorCode as JsonRpcErrorCode
    from openenv_sandbox.server.rpc_types import JsonRpcResponse as JsonRpcResponse
    from openenv_sandbox.server.rpc_types import McpMethod as McpMethod
    from openenv_sandbox.server.rpc_types import WSErrorCode as WSErrorCode
    from openenv_sandbox.server.rpc_types import WSErrorResponse as WSErrorResponse
    from openenv_sandbox.server.rpc_types import WSMCPMessage as WSMCPMessage
    from openenv_sandbox.server.rpc_types import WSMCPResponse as WSMCPResponse
    from openenv_sandbox.server.serialization import deserialize_action as deserialize_action
    from openenv_sandbox.server.serialization import (
        deserialize_action_with_preprocessing as deserialize_action_with_preprocessing,
    )
    from openenv_sandbox.server.serialization import serialize_observation as serialize_observation
    from openenv_sandbox.server.tasks import SplitRequest as ListTasksRequest
    from openenv_sandbox.server.tasks import SplitRequest as NumTasksRequest
    from openenv_sandbox.server.tasks import TaskProvider as TaskProvider
    from openenv_sandbox.server.tasks import TaskRangeRequest as GetTaskRangeRequest
    from openenv_sandbox.server.tasks import TaskRequest as GetTaskRequest
    from openenv_sandbox.server.toolspec import RESERVED_TOOL_NAMES as RESERVED_TOOL_NAMES
    from openenv_sandbox.server.types import ConcurrencyConfig as ConcurrencyConfig
    from openenv_sandbox.server.types import ConcurrencyConfigurationError as ConcurrencyConfigurationError
    from openenv_sandbox.server.types import ServerCapacityStatus as ServerCapacityStatus
    from openenv_sandbox.server.types import ServerMode as ServerMode
    from openenv_sandbox.server.types import SessionInfo as SessionInfo
    from openenv_sandbox.server.web.app import create_web_interface_app as create_web_interface_app
    from openenv_sandbox.server.web.manager import WebInterfaceManager as WebInterfaceManager

_HOMES = {
    "Action": "openenv_sandbox.models",
    "AnthropicClient": "openenv_sandbox.llm",
    "CallToolAction": "openenv_sandbox.models",
    "CallToolObservation": "openenv_sandbox.models",
    "CompositeTransform": "openenv_sandbox.server.environment",
    "ConcurrencyConfig": "openenv_sandbox.server.types",
    "ConcurrencyConfigurationError": "openenv_sandbox.server.types",
    "EnvClient": "openenv_sandbox.client",
    "Environment": "openenv_sandbox.server.environment",
    "EnvironmentFactoryError": "openenv_sandbox.errors:FactoryError",
    "GenericAction": "openenv_sandbox.client",
    "GenericEnvClient": "openenv_sandbox.client",
    "GetTaskRangeRequest": "openenv_sandbox.server.tasks:TaskRangeRequest",
    "GetTaskRequest": "openenv_sandbox.server.tasks:TaskRequest",
    "HTTPEnvServer": "openenv_sandbox.server.app",
    "HealthResponse": "openenv_sandbox.server.http",
    "HealthStatus": "openenv_sandbox.server.rpc_types",
    "JsonRpcError": "openenv_sandbox.server.rpc_types",
    "JsonRpcErrorCode": "openenv_sandbox.server.rpc_types",
    "JsonRpcRequest": "openenv_sandbox.server.mcp",
    "JsonRpcResponse": "openenv_sandbox.server.rpc_types",
    "LLMClient": "openenv_sandbox.llm",
    "LLMResponse": "openenv_sandbox.llm",
    "ListTasksRequest": "openenv_sandbox.server.tasks:SplitRequest",
    "ListToolsAction": "openenv_sandbox.models",
    "ListToolsObservation": "openenv_sandbox.models",
    "MCPClientBase": "openenv_sandbox.client",
    "MCPEnvironment": "openenv_sandbox.server.mcp_environment",
    "MCPToolClient": "openenv_sandbox.client",
    "McpMethod": "openenv_sandbox.server.rpc_types",
    "Message": "openenv_sandbox.server.protocols",
    "ModelTokenizer": "openenv_sandbox.server.protocols",
    "NullTransform": "openenv_sandbox.server.environment",
    "NumTasksRequest": "openenv_sandbox.server.tasks:SplitRequest",
    "Observation": "openenv_sandbox.models",
    "OpenAIClient": "openenv_sandbox.llm",
    "OpenEnvError": "openenv_sandbox.errors",
    "RESERVED_TOOL_NAMES": "openenv_sandbox.server.toolspec",
    "ServerCapacityStatus": "openenv_sandbox.server.types",
    "ServerMode": "openenv_sandbox.server.types",
    "SessionCapacityError": "openenv_sandbox.errors:CapacityError",
    "SessionInfo": "openenv_sandbox.server.types",
    "State": "openenv_sandbox.models",
    "SyncEnvClient": "openenv_sandbox.client",
    "TaskProvider": "openenv_sandbox.server.tasks",
    "Tool": "openenv_sandbox.models",
    "ToolCall": "openenv_sandbox.llm",
    "ToolError": "openenv_sandbox.models",
    "ToolErrorType": "openenv_sandbox.models",
    "Transform": "openenv_sandbox.server.environment",
    "WSErrorCode": "openenv_sandbox.server.rpc_types",
    "WSErrorResponse": "openenv_sandbox.server.rpc_types",
    "WSMCPMessage": "openenv_sandbox.server.rpc_types",
    "WSMCPResponse": "openenv_sandbox.server.rpc_types",
    "WebInterfaceManager": "openenv_sandbox.server.web.manager",
    "create_app": "openenv_sandbox.server.app",
    "create_fastapi_app": "openenv_sandbox.server.app",
    "create_llm_client": "openenv_sandbox.llm",
    "create_web_interface_app": "openenv_sandbox.server.web.app",
    "deserialize_action": "openenv_sandbox.server.serialization",
    "deserialize_action_with_preprocessing": "openenv_sandbox.server.serialization",
    "serialize_observation": "openenv_sandbox.server.serialization",
}

__all__ = [
    "RESERVED_TOOL_NAMES",
    "Action",
    "AnthropicClient",
    "CallToolAction",
    "CallToolObservation",
    "CompositeTransform",
    "ConcurrencyConfig",
    "ConcurrencyConfigurationError",
    "EnvClient",
    "Environment",
    "EnvironmentFactoryError",
    "GenericAction",
    "GenericEnvClient",
    "GetTaskRangeRequest",
    "GetTaskRequest",
    "HTTPEnvServer",
    "HealthResponse",
    "HealthStatus",
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "LLMClient",
    "LLMResponse",
    "ListTasksRequest",
    "ListToolsAction",
    "ListToolsObservation",
    "MCPClientBase",
    "MCPEnvironment",
    "MCPToolClient",
    "McpMethod",
    "Message",
    "ModelTokenizer",
    "NullTransform",
    "NumTasksRequest",
    "Observation",
    "OpenAIClient",
    "OpenEnvError",
    "ServerCapacityStatus",
    "ServerMode",
    "SessionCapacityError",
    "SessionInfo",
    "State",
    "SyncEnvClient",
    "TaskProvider",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolErrorType",
    "Transform",
    "WSErrorCode",
    "WSErrorResponse",
    "WSMCPMessage",
    "WSMCPResponse",
    "WebInterfaceManager",
    "create_app",
    "create_fastapi_app",
    "create_llm_client",
    "create_web_interface_app",
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
