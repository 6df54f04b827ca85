"""Tools over JSON-RPC: ``tools/list``, ``tools/call`` and the session methods, in the form existing clients speak.

`handle_rpc` serves one request, whichever way it came: POST /mcp, WS /mcp, or a frame of type ``mcp`` on /ws. Requests
of stock MCP clients are of another protocol and are served by `openenv_sandbox.server.mcp_http` before it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openenv_sandbox.errors import CapacityError, FactoryError
from openenv_sandbox.models import CallToolAction, ListToolsAction
from openenv_sandbox.server.toolspec import ToolCallError
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

logger = logging.getLogger("openenv.server")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000


class RpcSession(Protocol):
    """A session as far as JSON-RPC needs it."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    async def call(self, function: Callable[[Any], Any]) -> Any:
        """Call ``function(environment)`` where the environment lives; the result of a coroutine where it is one."""
        ...

    async def step(self, action: Any) -> Any:
        """Take an action and return the observation."""
        ...


class RpcContext(Protocol):
    """What a request can reach: the server, and the session of the socket it came by."""

    @property
    def own(self) -> RpcSession | None:
        """The session of the socket; None over HTTP."""
        ...

    @property
    def tool_actions(self) -> bool:
        """Whether the environment takes tool calls as actions of ``step``."""
        ...

    def find(self, session_id: str) -> RpcSession | None:
        """An open session."""
        ...

    async def create(self) -> RpcSession:
        """Open a session that no socket holds. Raises CapacityError or FactoryError."""
        ...

    async def close(self, session_id: str) -> bool:
        """Close a session; False when that waits for the socket that is attached to it."""
        ...

    def throwaway(self) -> AbstractAsyncContextManager[RpcSession]:
        """A session for one request."""
        ...


class JsonRpcRequest(BaseModel):
    """One request; its validation errors are part of the answer, its name included."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class RpcError(Exception):
    """Internal: an answer that is an error.

    Args:
        code: Number of JSON-RPC.
        message: What the caller is told.
        data: Further facts.
    """

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = None if data is None else dict(data)


def failure(request_id: str | int | None, code: int, message: str, data: Any = None) -> dict[str, Any]:
    """An error response; ``data`` is there even when it is null."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, "data": data}}


async def handle_rpc(request: Any, context: RpcContext) -> dict[str, Any]:
    """Answer one request; nothing it does raises.

    Args:
        request: The parsed JSON.
        context: What the request can reach.

    Returns:
        The response, ready for the codec.
    """
    try:
        parsed = JsonRpcRequest.model_validate(request)
    except ValidationError as error:
        return failure(None, INVALID_REQUEST, f"Invalid request: {error}")
    try:
        handler = _METHODS.get(parsed.method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {parsed.method}")
        result = await handler(parsed.params, context)
    except RpcError as error:
        return failure(parsed.id, error.code, str(error), error.data)
    except (CapacityError, FactoryError) as error:
        return failure(parsed.id, SERVER_ERROR, error.message, error.data)
    except Exception as error:
        logger.exception("JSON-RPC method %s failed", parsed.method)
        return failure(parsed.id, INTERNAL_ERROR, str(error) or type(error).__name__)
    return {"jsonrpc": "2.0", "id": parsed.id, "result": result}


def parse_body(body: bytes) -> Any:
    """The JSON of a body; None where it is none."""
    try:
        return codec.loads(body)
    except ValueError:
        return None


async def answer_post(request: Any, context: RpcContext) -> bytes:
    """The body that answers a POST to /mcp whose body is the JSON ``request``; its status is always 200."""
    if not isinstance(request, dict):
        return codec.dumps(failure(None, PARSE_ERROR, "Parse error"))
    return await _encoded(request, context)


async def answer_frame(text: str | bytes, context: RpcContext) -> bytes:
    """The frame that answers a frame on WS /mcp."""
    try:
        request = codec.loads(text)
    except ValueError as error:
        return codec.dumps(failure(None, PARSE_ERROR, f"Parse error: {error}"))
    return await _encoded(request, context)


async def _encoded(request: Any, context: RpcContext) -> bytes:
    response = await handle_rpc(request, context)
    try:
        return codec.dumps(response)
    except TypeError as error:
        return codec.dumps(failure(response["id"], INTERNAL_ERROR, str(error)))


async def list_tools(params: dict[str, Any], context: RpcContext) -> list[dict[str, Any]]:
    """The tools, each as a dict with ``inputSchema``.

    Raises:
        RpcError: The environment offers none, or there is no such session.
    """
    listed: list[dict[str, Any]] = await _in_session(params, context, _tools_of)
    return listed


async def call_tool(params: dict[str, Any], context: RpcContext) -> Any:
    """The result of one tool.

    Raises:
        RpcError: The parameters are malformed, or there is no such session.
        ToolCallError: No such tool, invalid arguments, or the tool raised.
    """
    name = params.get("name")
    if not name:
        raise RpcError(INVALID_PARAMS, "Missing 'name' in params")
    arguments = params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "'name' must be a string and 'arguments' an object")

    async def call(session: RpcSession, context: RpcContext) -> Any:
        def here(env: Any) -> Any:
            if not _offers_tools(env):
                return None
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return env.call_tool(name, arguments)
            return env.call_tool_async(name, arguments)

        result = await session.call(here)
        if result is not None:
            return result
        _require_tool_actions(context)
        return await session.step(CallToolAction(tool_name=name, arguments=arguments))

    return await _in_session(params, context, call)


async def _list_tools(params: dict[str, Any], context: RpcContext) -> dict[str, Any]:
    return {"tools": await list_tools(params, context)}


async def _call_tool(params: dict[str, Any], context: RpcContext) -> Any:
    try:
        return await call_tool(params, context)
    except ToolCallError as error:
        raise RpcError(INTERNAL_ERROR, error.message) from error


async def _create_session(params: dict[str, Any], context: RpcContext) -> dict[str, Any]:
    session = context.own if context.own is not None else await context.create()
    return {"session_id": session.id}


async def _close_session(params: dict[str, Any], context: RpcContext) -> dict[str, Any]:
    session_id = params.get("session_id")
    if not session_id:
        raise RpcError(INVALID_PARAMS, "Invalid params - 'session_id' is required")
    if context.own is not None and context.own.id == session_id:
        raise RpcError(INVALID_REQUEST, "Cannot close active WebSocket-managed session via MCP method")
    _found(session_id, context)
    if await context.close(session_id):
        return {"session_id": session_id, "closed": True}
    return {"session_id": session_id, "closed": False, "closing": True}


async def _tools_of(session: RpcSession, context: RpcContext) -> list[dict[str, Any]]:
    listing: list[dict[str, Any]] | None = await session.call(
        lambda env: env.tool_listing() if _offers_tools(env) else None
    )
    if listing is not None:
        return listing
    _require_tool_actions(context)
    observation = await session.step(ListToolsAction())
    return [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
        for tool in getattr(observation, "tools", [])
    ]


async def _in_session(params: dict[str, Any], context: RpcContext, use: Callable[..., Any]) -> Any:
    """Use the socket's session, else the one the request names, else one made for this request alone."""
    session = context.own
    if session is None and params.get("session_id"):
        session = _found(params["session_id"], context)
    if session is not None:
        return await use(session, context)
    async with context.throwaway() as session:
        return await use(session, context)


def _found(session_id: Any, context: RpcContext) -> RpcSession:
    session = context.find(session_id) if isinstance(session_id, str) else None
    if session is None:
        raise RpcError(INVALID_PARAMS, f"Unknown session_id: {session_id}")
    return session


def _offers_tools(env: Any) -> bool:
    return callable(getattr(env, "tool_listing", None)) and callable(getattr(env, "call_tool", None))


def _require_tool_actions(context: RpcContext) -> None:
    if not context.tool_actions:
        raise RpcError(INTERNAL_ERROR, "Environment does not support MCP")


_METHODS: dict[str, Callable[[dict[str, Any], RpcContext], Any]] = {
    "tools/list": _list_tools,
    "tools/call": _call_tool,
    "openenv/session/create": _create_session,
    "openenv/session/close": _close_session,
}
