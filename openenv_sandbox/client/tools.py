"""Clients of environments that offer tools: listing and calling them beside reset, step and state."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import ConfigDict

from openenv_sandbox.client import target as targets
from openenv_sandbox.client.base import EnvClient
from openenv_sandbox.client.parsing import finish, result_of, state_of
from openenv_sandbox.client.rpc import Rpc, RpcError
from openenv_sandbox.errors import CapacityError, ConfigError, ExecutionError, OpenEnvError
from openenv_sandbox.models import CallToolObservation, ListToolsObservation, Observation, State, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.client.result import Reply, StepResult

_CAPACITY = -32000


class GenericMCPObservation(Observation):
    """An observation of a tool environment with fields of its own."""

    model_config = ConfigDict(extra="allow")


class MCPClientBase(EnvClient[Any, Any, Any]):
    """A session made by ``openenv/session/create``, stepped over ``/ws`` and asked for tools over ``/mcp``.

    Args:
        base_url: Address of the server.
        connect_timeout_s: From dialling to an open session, in seconds.
        message_timeout_s: Longest wait for one reply, in seconds.
        websocket_ping_interval_s: Silence after which a ping is sent, in seconds; None sends none.
        websocket_ping_timeout_s: Silence after a ping that ends the session, in seconds.
        provider: As for `EnvClient`.
        mode: ``production``, or None for it.
        max_message_size_mb: Largest message taken from the server, in 10^6 bytes.
        headers: Sent with the upgrade and with tool calls.

    Raises:
        ConfigError: Another mode was asked for.
    """

    use_production_mode = True

    def __init__(
        self,
        base_url: str,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 60.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        max_message_size_mb: float = 100.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if mode is not None and mode.lower() != "production":
            raise ConfigError(
                f"{type(self).__name__} works in production mode, not {mode!r}", hint="leave mode out, or use EnvClient"
            )
        super().__init__(
            base_url,
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            websocket_ping_interval_s=websocket_ping_interval_s,
            websocket_ping_timeout_s=websocket_ping_timeout_s,
            provider=provider,
            mode="production",
            headers=headers,
        )
        self._tools_cache: list[Tool] | None = None
        self._rpc: Rpc | None = None
        self._session_id: str | None = None

    # --------------------------------------------------------------------------------------------------- session

    async def _before_open(self) -> None:
        await self._close_remote()
        try:
            result = await self._remote("openenv/session/create", {})
        except OpenEnvError:
            await self._drop_rpc()
            raise
        self._session_id = str(result["session_id"])
        self._query = f"session_id={quote(self._session_id)}"

    async def _end_session(self) -> None:
        try:
            await super()._end_session()
        finally:
            await self._close_remote()
            await self._drop_rpc()

    async def _drop_rpc(self) -> None:
        rpc, self._rpc = self._rpc, None
        if rpc is not None:
            await rpc.aclose()

    async def _close_remote(self) -> None:
        session, self._session_id = self._session_id, None
        if session is not None:
            with suppress(OpenEnvError):  # the server may have forgotten it, or be gone
                await self._remote("openenv/session/close", {"session_id": session})

    async def _remote(self, method: str, params: dict[str, Any]) -> Any:
        if self._rpc is None:
            where = targets.resolve(
                self._base_url,
                headers=self._headers,
                endpoint=self._endpoint,
                token=self._token,
                allow_insecure=self.allow_insecure,
            )
            base = self._endpoint.url if self._endpoint is not None else self._base_url
            self._rpc = Rpc(base, where, self._settings.connect_timeout, self._settings.message_timeout)
        try:
            return await self._rpc.call(method, params, blocking=self._face == "sync")
        except RpcError as error:
            if error.number == _CAPACITY and "max_sessions" in error.data:
                text = error.message.replace("(code: -32000)", "(code: CAPACITY_REACHED)")
                raise CapacityError(text, code="CAPACITY_REACHED", data=error.data) from None
            raise

    # ----------------------------------------------------------------------------------------------------- tools

    def list_tools(self, use_cache: bool = True) -> Reply[list[Tool]]:
        """The environment's tools.

        Args:
            use_cache: Ask the server only the first time.

        Raises:
            RpcError: The server refused.
        """
        reply: Reply[list[Tool]] = self._call(lambda: self._list_tools_async(use_cache), "list_tools")
        return reply

    async def _list_tools_async(self, use_cache: bool) -> list[Tool]:
        if self._tools_cache is None or not use_cache:
            await self._session(False)
            result = await self._remote("tools/list", {"session_id": self._session_id})
            self._tools_cache = [_tool(item) for item in result.get("tools", ())]
        return self._tools_cache

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        inside = payload.get("observation")
        fields = inside if isinstance(inside, dict) else {}
        kind: type[Observation] = GenericMCPObservation
        if set(fields) <= {"tools", "metadata"} and "tools" in fields:
            kind = ListToolsObservation
        elif set(fields) <= {"tool_name", "result", "error", "metadata"} and "tool_name" in fields:
            kind = CallToolObservation
        return finish(result_of(payload, kind), payload)  # type: ignore[no-any-return]

    def _parse_state(self, payload: dict[str, Any]) -> Any:
        return state_of(payload, State)


class MCPToolClient(MCPClientBase):
    """Calls an environment's tools by name: ``await client.call_tool("echo_message", message="hi")``."""

    def call_tool(self, name: str, **kwargs: Any) -> Reply[Any]:
        """Call a tool and return what it returned.

        Args:
            name: Name of the tool.
            kwargs: Its arguments.

        Raises:
            ExecutionError: ``Tool '<name>' failed: …``.
            StepTimeout: No answer in time.
        """
        reply: Reply[Any] = self._call(lambda: self._call_tool_async(name, kwargs), "call_tool")
        return reply

    async def _call_tool_async(self, name: str, arguments: dict[str, Any]) -> Any:
        await self._session(False)
        params = {"name": name, "arguments": arguments, "session_id": self._session_id}
        try:
            result = await self._remote("tools/call", params)
        except RpcError as error:
            text = error.message.removeprefix("Server error: ").rpartition(" (code:")[0]
            raise ExecutionError(f"Tool {name!r} failed: {text}", code=error.code, data=error.data) from None
        if not isinstance(result, dict):
            return result
        if result.get("is_error"):
            texts = [str(item.get("text", "")) for item in result.get("content") or () if isinstance(item, dict)]
            raise ExecutionError(f"Tool {name!r} failed: {' '.join(texts) or 'no reason given'}", code="TOOL_ERROR")
        return result["data"] if "data" in result else result

    def get_tool(self, name: str) -> Reply[Tool | None]:
        """The tool of that name, or None."""

        async def find() -> Tool | None:
            return next((tool for tool in await self._list_tools_async(True) if tool.name == name), None)

        reply: Reply[Tool | None] = self._call(find, "get_tool")
        return reply

    def has_tool(self, name: str) -> Reply[bool]:
        """Whether there is a tool of that name."""

        async def find() -> bool:
            return any(tool.name == name for tool in await self._list_tools_async(True))

        reply: Reply[bool] = self._call(find, "has_tool")
        return reply


def _tool(item: Mapping[str, Any]) -> Tool:
    schema = item.get("inputSchema", item.get("input_schema")) or {}
    return Tool(name=str(item["name"]), description=str(item.get("description") or ""), input_schema=schema)
