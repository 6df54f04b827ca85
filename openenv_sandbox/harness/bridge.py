"""A session's tools by JSON-RPC, for programs that speak it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.harness.types import ResourceSession

_INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32600, -32601, -32602, -32603


class SessionMCPBridge:
    """Answers ``tools/list`` and ``tools/call`` for one session.

    Args:
        session: The session; not closed here.
    """

    def __init__(self, session: ResourceSession) -> None:
        self.session = session

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request; nothing it does raises.

        Args:
            request: ``jsonrpc``, ``id``, ``method``, ``params``.

        Returns:
            The response. The result of a call has ``data``, ``done``, ``metadata`` and ``error``.
        """
        number = request.get("id")
        params = request.get("params") or {}
        if not isinstance(params, dict):
            return _failed(number, _INVALID_PARAMS, "params must be an object")
        match request.get("method"):
            case "tools/list":
                return self._answer(number, self._list)
            case "tools/call":
                name, arguments = params.get("name"), params.get("arguments") or {}
                if not isinstance(name, str) or not isinstance(arguments, dict):
                    return _failed(number, _INVALID_PARAMS, "'name' must be a string and 'arguments' an object")
                return self._answer(number, lambda: self._call(name, arguments))
            case str() as method:
                return _failed(number, _METHOD_NOT_FOUND, f"Method not found: {method}")
            case _:
                return _failed(number, _INVALID_REQUEST, "a request needs a method")

    def _list(self) -> dict[str, Any]:
        return {
            "tools": [
                {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
                for tool in self.session.list_tools()
            ]
        }

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = self.session.call_tool(name, arguments)
        fields = {"data": result.data, "done": result.done, "metadata": result.metadata, "error": result.error}
        plain: dict[str, Any] = codec.loads(codec.dumps(fields))
        return plain

    def _answer(self, number: Any, get: Any) -> dict[str, Any]:
        try:
            return {"jsonrpc": "2.0", "id": number, "result": get()}
        except KeyError as error:
            return _failed(number, _INVALID_PARAMS, str(error.args[0]) if error.args else "unknown tool")
        except Exception as error:
            return _failed(number, _INTERNAL, str(error) or type(error).__name__)


def _failed(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
