"""What is asked of a FastMCP server object, in the process it lives in."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import ConfigDict

from openenv_sandbox.errors import BrokenExtraError, MissingExtraError
from openenv_sandbox.models import ToolErrorType
from openenv_sandbox.server.toolspec import ToolCallError, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import TracebackType

    from typing_extensions import Self

T = TypeVar("T")


class FastMCPResult(ToolResult):
    """What a tool of a FastMCP server returned; ``data`` is the value, ``content`` the blocks of the MCP library."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    content: list[Any]


class HasTools(Protocol):
    """What a `ToolSession` needs of its environment."""

    async def call_tool_async(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> ToolResult:
        """Call a tool."""
        ...

    async def _tools(self) -> list[Any]: ...


class ToolSession:
    """Lists and calls the tools of an environment; may be entered by ``async with``, which does nothing.

    Args:
        env: The environment.
    """

    def __init__(self, env: HasTools) -> None:
        self._env = env

    async def list_tools(self) -> list[Any]:
        """The tools: name, description and input_schema of each."""
        return await self._env._tools()

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call one; ``data`` of the result is what it returned.

        Raises:
            ToolCallError: No such tool, invalid arguments, the tool raised, or took too long.
        """
        return await self._env.call_tool_async(name, arguments)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def require_fastmcp() -> None:
    """Make sure that FastMCP can be used.

    Raises:
        MissingExtraError: It is not installed.
        BrokenExtraError: It is installed and does not import.
    """
    install = "pip install 'openenv[core]'"
    try:
        import_module("fastmcp")
    except ModuleNotFoundError as error:
        if error.name == "fastmcp":
            raise MissingExtraError(f"MCPEnvironment needs FastMCP: {install}", hint=install) from error
        raise BrokenExtraError(f"FastMCP is installed but does not import: {error}", hint=install) from error
    except ImportError as error:
        raise BrokenExtraError(f"FastMCP is installed but does not import: {error}", hint=install) from error


def get_server_tools(mcp_server: Any) -> dict[str, Any]:
    """The tools of a server by name, with or without a running loop."""
    return run_anywhere(lambda: server_tools(mcp_server))


async def server_tools(mcp_server: Any) -> dict[str, Any]:
    """The tools of a server by name: older servers have a dict of them, newer ones a list."""
    lister = getattr(mcp_server, "get_tools", None) or mcp_server.list_tools
    tools = lister()
    if inspect.isawaitable(tools):
        tools = await tools
    return dict(tools) if isinstance(tools, dict) else {tool.name: tool for tool in tools}


async def call_server_tool(mcp_server: Any, name: str, arguments: dict[str, Any]) -> ToolResult:
    """Call a tool of a server.

    Raises:
        ToolCallError: No such tool, invalid arguments, or the tool raised.
    """
    try:
        result = await mcp_server.call_tool(name, arguments)
    except Exception as error:
        raise ToolCallError(str(error) or type(error).__name__, kind=_kind(error)) from error
    content = list(getattr(result, "content", ()) or ())
    if getattr(result, "is_error", False):
        texts = [str(block.text) for block in content if hasattr(block, "text")]
        raise ToolCallError(" ".join(texts) or f"Error calling tool '{name}'")
    structured = getattr(result, "structured_content", None)
    meta = getattr(result, "meta", None)
    return FastMCPResult.model_construct(
        content=content,
        structured_content=structured,
        meta=meta,
        data=structured["result"] if structured and await _wraps(mcp_server, name, structured, meta) else structured,
        is_error=False,
    )


async def _wraps(mcp_server: Any, name: str, structured: Any, meta: Any) -> bool:
    """Whether the structured result holds a value that is no object."""
    if not isinstance(structured, dict) or set(structured) != {"result"}:
        return False
    if isinstance(meta, dict) and "wrap_result" in (meta.get("fastmcp") or {}):
        return bool(meta["fastmcp"]["wrap_result"])
    tool = (await server_tools(mcp_server)).get(name)
    return bool((getattr(tool, "output_schema", None) or {}).get("x-fastmcp-wrap-result"))


def _kind(error: Exception) -> ToolErrorType:
    # By name: where these classes live differs between versions of the library.
    names = {cls.__name__ for cls in type(error).__mro__}
    if "NotFoundError" in names:
        return ToolErrorType.TOOL_NOT_FOUND
    return ToolErrorType.INVALID_ARGS if "ValidationError" in names else ToolErrorType.EXECUTION_ERROR


class _OwnLoop(threading.local):
    """The event loop of a thread that has none running: kept, so that what a tool opens on it lives on."""

    runner: _Runner | None = None


class _Runner:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __del__(self) -> None:
        self.loop.close()


_own = _OwnLoop()


def run_anywhere(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end: on this thread's own loop, or beside a running one, which stands still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _own.runner = _own.runner or _Runner()
        return _own.runner.loop.run_until_complete(start())
    outcome: list[Any] = []
    context = contextvars.copy_context()

    def beside() -> None:
        try:
            outcome.extend((True, context.run(asyncio.run, start())))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=beside, name="openenv-tools", daemon=True)
    thread.start()
    thread.join()
    succeeded, value = outcome
    if not succeeded:
        raise value
    result: T = value
    return result
