"""An environment on a FastMCP server: its tools are the actions.

The server's own ``call_tool`` is called in this process: its middleware, context injection and argument coercion stay
in force, and there is no client, socket or session of MCP in between.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

from openenv_sandbox.models import (
    Action,
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Observation,
    State,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv_sandbox.server.calls import accepted
from openenv_sandbox.server.environment import Environment, Transform
from openenv_sandbox.server.fastmcp_tools import (
    ToolSession,
    call_server_tool,
    get_server_tools,
    require_fastmcp,
    run_anywhere,
    server_tools,
)
from openenv_sandbox.server.toolspec import (
    ToolCallError,
    ToolResult,
    ToolSpec,
    check_name,
    check_signature,
    compile_tool,
)

__all__ = ["MCP_TOOL_CALL_TIMEOUT", "VALID_MODES", "MCPEnvironment", "get_server_tools"]

MCP_TOOL_CALL_TIMEOUT = 30.0
"""Seconds a tool may take where a step says nothing else."""

VALID_MODES = frozenset({"production", "simulation"})

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class MCPEnvironment(Environment[Action, Observation, State]):
    """An environment whose tools are those of a FastMCP server.

    A subclass implements ``reset``, ``state`` and ``_step_impl``, which takes every action that is no tool call. It may
    override ``step`` and ``step_async`` (to count, to reward) calling the same method of this class: neither of the two
    calls the other.

    Args:
        mcp_server: The FastMCP server with the tools.
        transform: Applied to the observations of tool calls.

    Attributes:
        mcp_server: The server; None after ``close``.
        mcp_client: Lists and calls the tools, as `mcp_session` gives it; None after ``close``.

    Raises:
        MissingExtraError: The extra ``core`` is not installed.
        ValueError: A tool has one of the reserved names.
    """

    _mode: str | None = None
    _mode_tools: ClassVar[Mapping[str, Mapping[str, tuple[ToolSpec, Callable[..., Any]]]]] = {}

    def __init__(self, mcp_server: Any, transform: Transform[Observation] | None = None) -> None:
        require_fastmcp()
        super().__init__(transform)
        for name in get_server_tools(mcp_server):
            check_name(name)
        self.mcp_server = mcp_server
        self.mcp_client: ToolSession | None = ToolSession(self)

    # -------------------------------------------------------------------------------------------- what authors call

    def tool(self, mode: Any = None) -> Callable[[FunctionT], FunctionT]:
        """Make a function a tool: ``@self.tool()``, or ``@self.tool(mode="production")`` for one mode alone.

        Args:
            mode: ``production``, ``simulation``, or None for a tool of the server in both.

        Raises:
            ValueError: The name is reserved, or there is no such mode.
            TypeError: A tool of one mode has parameters that cannot be passed by name.
        """
        if callable(mode):
            registered: Any = self.tool()(mode)
            return registered  # type: ignore[no-any-return]
        if mode is not None and mode not in VALID_MODES:
            raise ValueError(f"mode must be one of {', '.join(sorted(VALID_MODES))}, not {mode!r}")

        def register(function: FunctionT) -> FunctionT:
            name = check_name(function.__name__)
            if mode is None:
                self.mcp_server.tool(function)
                return function
            check_signature(function, name)
            spec = compile_tool(function, name=name, attribute=name, description=None, is_method=False)
            tables = {key: dict(table) for key, table in self._mode_tools.items()}
            tables.setdefault(mode, {})[name] = (spec, function)
            vars(self)["_mode_tools"] = tables
            return function

        return register

    @asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[ToolSession]:
        """Lists and calls the tools: ``await session.list_tools()``, ``await session.call_tool(name, arguments)``."""
        yield ToolSession(self)

    @property
    def supports_code_mode(self) -> bool:
        """Whether `execute_code` can be used."""
        return True

    def get_callables(self) -> dict[str, Callable[..., Any]]:
        """The functions behind the tools of the current mode, by name."""
        found = {
            name: tool.fn
            for name, tool in get_server_tools(self.mcp_server).items()
            if callable(getattr(tool, "fn", None))
        }
        return {**found, **{name: function for name, (_, function) in self._of_mode().items()}}

    def execute_code(self, code: str) -> Observation:
        """Run Python in which the tools are functions, in this process and without any isolation.

        Args:
            code: Statements; what they assign to ``result`` is returned.

        Returns:
            An observation whose metadata holds ``result``, or ``error`` where the code raised.
        """
        names: dict[str, Any] = dict(self.get_callables())
        try:
            exec(code, names)
        except (Exception, SystemExit) as error:
            return Observation(metadata={"error": str(error) or type(error).__name__})
        return Observation(metadata={"result": names.get("result")})

    # ------------------------------------------------------------------------------------------------------- steps

    @abstractmethod
    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """Take an action that is no tool call; from ``step_async`` this runs in a worker thread."""

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """List the tools, call one, or take another action; works with and without a running loop.

        Args:
            action: What to do.
            timeout_s: Seconds a tool may take, by default `MCP_TOOL_CALL_TIMEOUT`.
            **kwargs: Passed on to ``_step_impl``.
        """
        if isinstance(action, (ListToolsAction, CallToolAction)):
            return run_anywhere(lambda: self._tool_step(action, timeout_s))
        return self._step_impl(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """The same from a running loop.

        Where a subclass overrides ``step`` alone, that override is what a step is, and runs in a worker thread.
        """
        cls = type(self)
        if cls.step is not MCPEnvironment.step and cls.step_async is MCPEnvironment.step_async:
            names = accepted(self.step)
            offered = {"timeout_s": timeout_s, **kwargs}
            taken = {name: value for name, value in offered.items() if names is None or name in names}
            return await asyncio.to_thread(self.step, action, **taken)
        if isinstance(action, (ListToolsAction, CallToolAction)):
            return await self._tool_step(action, timeout_s)
        return await asyncio.to_thread(self._step_impl, action, timeout_s=timeout_s, **kwargs)

    async def _tool_step(self, action: ListToolsAction | CallToolAction, timeout_s: float | None) -> Observation:
        if isinstance(action, ListToolsAction):
            return self._apply_transform(ListToolsObservation(tools=await self._tools()))
        name = action.tool_name
        try:
            result = await self.call_tool_async(name, action.arguments, timeout_s=timeout_s)
        except ToolCallError as error:
            failure = ToolError(error_type=error.kind, message=error.message)
            return self._apply_transform(CallToolObservation(tool_name=name, error=failure))
        return self._apply_transform(CallToolObservation(tool_name=name, result=result))

    def close(self) -> None:
        """Let go of the server; a subclass that overrides this calls it."""
        super().close()
        self.mcp_server = None
        self.mcp_client = None

    # ------------------------------------------------------------------------------ what JSON-RPC and sessions call

    async def tool_listing(self) -> list[dict[str, Any]]:
        """The tools of the current mode as ``tools/list`` of JSON-RPC answers them."""
        of_mode = self._of_mode()
        tools = await server_tools(self.mcp_server)
        listed = [_plain(tool.to_mcp_tool()) for name, tool in tools.items() if name not in of_mode]
        return [*listed, *(spec.as_listing() for spec, _ in of_mode.values())]

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> ToolResult:
        """Call one tool, with or without a running loop. Raises what `call_tool_async` raises."""
        return run_anywhere(lambda: self.call_tool_async(name, arguments, timeout_s=timeout_s))

    async def call_tool_async(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> ToolResult:
        """Call one tool.

        Args:
            name: Its name.
            arguments: Its arguments by name.
            timeout_s: Seconds it may take, by default `MCP_TOOL_CALL_TIMEOUT`.

        Raises:
            ToolCallError: No such tool, invalid arguments, the tool raised, or took too long.
        """
        limit = MCP_TOOL_CALL_TIMEOUT if timeout_s is None else timeout_s
        try:
            return await asyncio.wait_for(self._call(name, dict(arguments or {})), limit)
        except (TimeoutError, asyncio.TimeoutError):
            text = f"Tool '{name}' timed out after {limit:g} seconds"
            raise ToolCallError(text, kind=ToolErrorType.TIMEOUT) from None

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        of_mode = self._of_mode().get(name)
        if of_mode is None:
            return await call_server_tool(self.mcp_server, name, arguments)
        spec, function = of_mode
        try:
            values = spec.bind(arguments)
        except ValueError as error:
            raise ToolCallError(str(error), kind=ToolErrorType.INVALID_ARGS) from error
        try:
            if spec.is_async:
                return spec.result(await function(**values))
            return spec.result(await asyncio.to_thread(function, **values))
        except Exception as error:
            raise ToolCallError(f"Error calling tool '{name}': {error}") from error

    async def _tools(self) -> list[Tool]:
        return [
            Tool(
                name=item["name"],
                description=item.get("description") or "",
                input_schema=item.get("inputSchema") or item.get("input_schema") or {},
            )
            for item in await self.tool_listing()
        ]

    def _of_mode(self) -> Mapping[str, tuple[ToolSpec, Callable[..., Any]]]:
        return self._mode_tools.get(self._mode or "", {})


def _plain(tool: Any) -> dict[str, Any]:
    fields: dict[str, Any] = tool.model_dump()
    if "input_schema" in fields:  # models of the next major version
        fields["inputSchema"] = fields.pop("input_schema")
        fields["outputSchema"] = fields.pop("output_schema", None)
    return fields
