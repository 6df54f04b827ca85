"""JSON-RPC and error frames as models, for callers that build or check them by hand.

The server itself answers with plain dicts; these describe the same shapes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from openenv_sandbox.server import mcp
from openenv_sandbox.wire import messages


class McpMethod(str, Enum):
    """Methods the server answers in its own JSON-RPC form."""

    TOOLS_LIST = "tools/list"
    TOOLS_CALL = "tools/call"
    SESSION_CREATE = "openenv/session/create"
    SESSION_CLOSE = "openenv/session/close"


class JsonRpcErrorCode(int, Enum):
    """Codes of error responses."""

    PARSE_ERROR = mcp.PARSE_ERROR
    INVALID_REQUEST = mcp.INVALID_REQUEST
    METHOD_NOT_FOUND = mcp.METHOD_NOT_FOUND
    INVALID_PARAMS = mcp.INVALID_PARAMS
    INTERNAL_ERROR = mcp.INTERNAL_ERROR
    SERVER_ERROR = mcp.SERVER_ERROR


class JsonRpcError(BaseModel):
    """Why a request failed.

    Attributes:
        code: Number of JSON-RPC.
        message: One sentence.
        data: Further facts.
    """

    model_config = ConfigDict(extra="forbid")

    code: int
    message: str
    data: Any = None


class JsonRpcResponse(BaseModel):
    """The answer to a request: a result or an error, never both.

    Attributes:
        jsonrpc: Always ``2.0``.
        id: The request's id.
        result: What the method returned; left out of the dump of an error.
        error: Why it failed; left out of the dump of a success.
    """

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | int | None = None
    result: Any = None
    error: JsonRpcError | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> JsonRpcResponse:
        if self.error is not None and self.result is not None:
            raise ValueError("a response has a result or an error, not both")
        return self

    @model_serializer(mode="wrap")
    def _without_the_other(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        fields.pop("result" if self.error is not None else "error", None)
        return fields


class WSErrorCode(str, Enum):
    """Codes of error frames on ``/ws``."""

    INVALID_JSON = messages.INVALID_JSON
    UNKNOWN_TYPE = messages.UNKNOWN_TYPE
    VALIDATION_ERROR = messages.VALIDATION_ERROR
    EXECUTION_ERROR = messages.EXECUTION_ERROR
    SERIALIZATION_ERROR = messages.SERIALIZATION_ERROR
    MESSAGE_TOO_LARGE = messages.MESSAGE_TOO_LARGE
    CAPACITY_REACHED = messages.CAPACITY_REACHED
    FACTORY_ERROR = messages.FACTORY_ERROR
    SESSION_ERROR = messages.SESSION_ERROR


class WSErrorResponse(BaseModel):
    """An error frame; ``data`` holds ``message``, ``code`` and further facts."""

    type: Literal["error"] = "error"
    data: dict[str, Any]


class WSMCPMessage(BaseModel):
    """A JSON-RPC request inside a session."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]


class WSMCPResponse(BaseModel):
    """The answer to a `WSMCPMessage`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["mcp"] = "mcp"
    data: dict[str, Any] = Field(description="A JSON-RPC response")


class HealthStatus(str, Enum):
    """What ``/health`` may say."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEGRADED = "degraded"


class CodeExecResult(BaseModel):
    """Outcome of running code.

    Attributes:
        stdout: What it printed.
        stderr: What it complained about.
        exit_code: 0 for success.
    """

    model_config = ConfigDict(extra="forbid")

    stdout: str
    stderr: str
    exit_code: int
