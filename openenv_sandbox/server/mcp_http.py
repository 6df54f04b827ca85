"""MCP over streamable HTTP: what agents with a stock MCP client get at ``/mcp``.

The same URL serves the older JSON-RPC form of `openenv_sandbox.server.mcp`. A request is of MCP when its method is
``initialize`` with a version, ``ping`` or a notification, or when it carries ``Mcp-Session-Id`` or
``Mcp-Protocol-Version``, which every request of an MCP client after the first does. Answers are single JSON bodies,
never event streams, which the specification allows (https://modelcontextprotocol.io, Transports, "Streamable HTTP").

``initialize`` opens a session: it takes a slot, builds the environment and resets it once. ``DELETE``, an idle hour
(or ``session_timeout``) and the end of the server free it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from openenv_sandbox.errors import CapacityError, FactoryError, OpenEnvError, ProtocolError
from openenv_sandbox.models import ToolErrorType
from openenv_sandbox.server import mcp
from openenv_sandbox.server.context import SessionContext
from openenv_sandbox.server.toolspec import ToolCallError
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from openenv_sandbox.server.session import Session
    from openenv_sandbox.server.sessions import SessionManager

logger = logging.getLogger("openenv.server")

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions of the protocol, oldest first. One asked for is granted, any other is answered with the newest."""

BATCHING = frozenset({"2025-03-26"})
"""Versions that allow several messages in one body."""

SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"
DISCOVER = "server/discover"
"""First request of clients that also know the stateless successor; an error sends them to ``initialize``."""


def is_mcp(message: Any, headers: Mapping[str, str]) -> bool:
    """Whether a parsed body is for MCP rather than for the older JSON-RPC form.

    Args:
        message: The parsed JSON.
        headers: Of the request, found by lower-case names.
    """
    if SESSION in headers or VERSION in headers:
        return True
    messages = message if isinstance(message, list) else [message]
    return any(isinstance(one, dict) and _is_mcp_message(one) for one in messages)


def _is_mcp_message(message: dict[str, Any]) -> bool:
    method, params = message.get("method"), message.get("params")
    if method == "initialize":  # without a version it is the question whether a server has that method
        return isinstance(params, dict) and "protocolVersion" in params
    return isinstance(method, str) and (method == "ping" or method.startswith("notifications/"))


class McpServer:
    """Serves ``/mcp`` to MCP clients on the sessions of a server.

    Args:
        manager: Opens and finds the sessions.
        name: What ``initialize`` says this server is.
        version: Its version.
    """

    def __init__(self, manager: SessionManager, *, name: str, version: str) -> None:
        self._manager = manager
        self._info = {"name": name, "version": version}

    async def post(self, message: Any, request: Request) -> Response:
        """Answer a POST whose body is ``message``.

        Args:
            message: The parsed JSON.
            request: Its headers.
        """
        accept = request.headers.get("accept", "*/*").lower()
        if not any(kind in accept for kind in ("application/json", "application/*", "*/*")):
            return _failed(406, None, mcp.INVALID_REQUEST, "Not Acceptable: answers are application/json")
        version = request.headers.get(VERSION)
        method = message.get("method") if isinstance(message, dict) else None
        if version is not None and version not in VERSIONS and method not in ("initialize", DISCOVER):
            text = f"Unsupported protocol version: {version} (supported: {', '.join(VERSIONS)})"
            return _failed(400, _id_of(message), mcp.INVALID_REQUEST, text)
        if message is None:
            return _failed(400, None, mcp.PARSE_ERROR, "Parse error")
        if isinstance(message, list):
            return await self._batch(message, request)
        status, answer, headers = await self._one(message, request)
        if answer is None:
            return Response(status_code=status, headers=headers)
        return _json(status, answer, headers)

    async def delete(self, request: Request) -> Response:
        """End the session that a DELETE names."""
        session_id = request.headers.get(SESSION)
        if session_id is None:
            return _failed(400, None, mcp.INVALID_REQUEST, "Mcp-Session-Id is missing")
        if session_id not in self._manager.sessions:
            return _not_found(None)
        await self._manager.close_session(session_id)
        return Response(status_code=204)

    async def _batch(self, messages: list[Any], request: Request) -> Response:
        version = request.headers.get(VERSION, "2025-03-26")
        opening = any(isinstance(one, dict) and one.get("method") == "initialize" for one in messages)
        if not messages or version not in BATCHING or opening:
            return _failed(400, None, mcp.INVALID_REQUEST, "Invalid request: one message for each POST")
        answers = []
        for message in messages:
            status, answer, _ = await self._one(message, request)
            if status >= 400 and answer is not None:
                return _json(status, answer)
            if answer is not None:
                answers.append(answer)
        return _json(200, answers) if answers else Response(status_code=202)

    async def _one(self, message: Any, request: Request) -> tuple[int, dict[str, Any] | None, dict[str, str]]:
        session_id = request.headers.get(SESSION)
        session = None if session_id is None else self._manager.sessions.get(session_id)
        if isinstance(message, dict) and message.get("method") == "initialize":
            return await self._initialize(message, request)
        if session_id is not None and session is None:
            return 404, _session_gone(_id_of(message)), {}
        if _is_answer_or_notification(message):
            return 202, None, {}
        try:
            parsed = mcp.JsonRpcRequest.model_validate(message)
        except ValidationError as error:
            return 400, mcp.failure(_id_of(message), mcp.INVALID_REQUEST, f"Invalid request: {error}"), {}
        try:
            result = await self._result(parsed, session)
        except mcp.RpcError as error:
            return 200, mcp.failure(parsed.id, error.code, str(error), error.data), {}
        except OpenEnvError as error:
            return 200, mcp.failure(parsed.id, mcp.SERVER_ERROR, error.message), {}
        except Exception as error:
            logger.exception("MCP method %s failed", parsed.method)
            return 200, mcp.failure(parsed.id, mcp.INTERNAL_ERROR, str(error) or type(error).__name__), {}
        return 200, {"jsonrpc": "2.0", "id": parsed.id, "result": result}, {}

    async def _initialize(
        self, message: dict[str, Any], request: Request
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        request_id, params = _id_of(message), message.get("params")
        asked = params.get("protocolVersion") if isinstance(params, dict) else None
        if request_id is None or not isinstance(asked, str):
            text = "Invalid request: initialize needs an id and params.protocolVersion"
            return 400, mcp.failure(request_id, mcp.INVALID_REQUEST, text), {}
        try:
            session = await self._manager.open()
        except (CapacityError, FactoryError, ProtocolError) as error:
            return 200, mcp.failure(request_id, mcp.SERVER_ERROR, error.message, error.data), {}
        try:
            await session.reset({})
            instructions = await session.call(_instructions)
            if await request.is_disconnected():  # nobody will ever learn the session's id
                raise ConnectionAbortedError("the client has gone")
        except BaseException as error:
            ended = self._manager.end(session)
            if not isinstance(error, Exception):
                raise
            await asyncio.shield(ended)
            level = logging.INFO if isinstance(error, ConnectionAbortedError) else logging.ERROR
            logger.log(level, "an MCP session did not begin", exc_info=error)
            text = f"The environment could not be reset: {str(error) or type(error).__name__}"
            return 200, mcp.failure(request_id, mcp.INTERNAL_ERROR, text), {}
        result = {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": self._info,
        }
        if instructions:
            result["instructions"] = instructions
        return 200, {"jsonrpc": "2.0", "id": request_id, "result": result}, {SESSION: session.id}

    async def _result(self, request: mcp.JsonRpcRequest, session: Session | None) -> dict[str, Any]:
        context = SessionContext(self._manager, session)
        if request.method == "ping":
            return {}
        if request.method == "tools/list":
            return {"tools": [_listed(tool) for tool in await mcp.list_tools({}, context)]}
        if request.method == "tools/call":
            if session is None:
                raise mcp.RpcError(mcp.INVALID_REQUEST, "Mcp-Session-Id is missing: initialize first")
            try:
                return _called(await mcp.call_tool(request.params, context))
            except ToolCallError as error:
                if error.kind is ToolErrorType.TOOL_NOT_FOUND:
                    raise mcp.RpcError(mcp.INVALID_PARAMS, error.message) from error
                return _text(error.message, is_error=True)
        raise mcp.RpcError(mcp.METHOD_NOT_FOUND, f"Method not found: {request.method}")


def _instructions(env: Any) -> str | None:
    text = getattr(getattr(env, "mcp_server", None), "instructions", None)
    return text if isinstance(text, str) else None


def _id_of(message: Any) -> str | int | None:
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, (str, int)) and not isinstance(found, bool) else None


def _is_answer_or_notification(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return False
    if "method" not in message:
        return "result" in message or "error" in message
    return "id" not in message and isinstance(message["method"], str)


def _listed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as the specification lists it; the older form writes out every key it knows, null or not."""
    item = {("_meta" if key == "meta" else key): value for key, value in tool.items() if value is not None}
    item.setdefault("inputSchema", {"type": "object"})
    return item


def _called(result: Any) -> dict[str, Any]:
    """A tool's result in the keys of the specification: with the older ones a client would see no failure at all."""
    error = getattr(result, "error", None)
    if error is not None:
        return _text(str(getattr(error, "message", error)), is_error=True)
    if hasattr(result, "tool_name"):  # the observation of a step
        result = result.result
    fields = _fields(result)
    if not isinstance(fields, dict) or not isinstance(fields.get("content"), list):
        return _text(result if isinstance(result, str) else codec.dumps(fields).decode(), is_error=False)
    answer: dict[str, Any] = {
        "content": [_block(block) for block in fields["content"]],
        "isError": bool(fields.get("is_error", fields.get("isError", False))),
    }
    structured = fields.get("structured_content", fields.get("structuredContent"))
    if structured is not None:
        answer["structuredContent"] = structured
    if fields.get("meta"):
        answer["_meta"] = fields["meta"]
    return answer


def _fields(result: Any) -> Any:
    if isinstance(result, BaseModel):
        return {name: getattr(result, name) for name in type(result).model_fields}
    return result


def _block(block: Any) -> dict[str, Any]:
    if isinstance(block, BaseModel):
        block = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {("_meta" if key == "meta" else key): value for key, value in block.items() if value is not None}


def _text(text: str, *, is_error: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _session_gone(request_id: str | int | None) -> dict[str, Any]:
    return mcp.failure(request_id, mcp.INVALID_PARAMS, "Session not found: it was closed or has expired")


def _not_found(request_id: str | int | None) -> Response:
    return _json(404, _session_gone(request_id))


def _failed(status: int, request_id: str | int | None, code: int, text: str) -> Response:
    return _json(status, mcp.failure(request_id, code, text))


def _json(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(codec.dumps(content), status, headers, media_type="application/json")
