"""Environments whose actions are calls of decorated functions.

    class Calculator(ToolEnvironment):
        @tool
        def add(self, a: int, b: int) -> int:
            "Add two numbers."
            return a + b

Tools are dispatched directly: the arguments are validated and the method is called.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast, overload

from pydantic import ValidationError

from openenv_sandbox.errors import UsageError
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
from openenv_sandbox.server.environment import Environment
from openenv_sandbox.server.toolspec import (
    RESERVED_TOOL_NAMES,
    TextContent,
    ToolCallError,
    ToolResult,
    ToolSpec,
    check_name,
    check_signature,
    compile_tool,
)

__all__ = [
    "RESERVED_TOOL_NAMES",
    "TextContent",
    "ToolCallError",
    "ToolEnvironment",
    "ToolResult",
    "ToolSpec",
    "tool",
]

logger = logging.getLogger("openenv.server")

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_MARK = "_openenv_tool"
_TABLE = "_openenv_tool_table"


@overload
def tool(function: FunctionT) -> FunctionT: ...


@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[FunctionT], FunctionT]: ...


def tool(
    function: FunctionT | None = None, *, name: str | None = None, description: str | None = None
) -> FunctionT | Callable[[FunctionT], FunctionT]:
    """Make a method of a `ToolEnvironment` a tool.

    Args:
        function: The method, a plain or coroutine function. Its type hints become the schema, its docstring the
            description, the ``Args`` section of that the descriptions of the arguments.
        name: Another name than the method's.
        description: Another description than the docstring's.

    Raises:
        ValueError: The name is one of `RESERVED_TOOL_NAMES`.
        TypeError: A parameter cannot be passed by name.
    """

    def mark(target: FunctionT) -> FunctionT:
        inner = getattr(target, "__func__", target)
        wire_name = check_name(inner.__name__ if name is None else name)
        check_signature(inner, wire_name)
        setattr(inner, _MARK, (wire_name, description))
        return target

    return mark if function is None else mark(function)


def tool_table(cls: type) -> Mapping[str, ToolSpec]:
    """The tools of a class by wire name, in order of definition, compiled on first use.

    Raises:
        TypeError: A tool's type hints have no JSON schema.
        ValueError: Two methods claim one name.
    """
    known = cls.__dict__.get(_TABLE)
    if known is not None:
        return cast("Mapping[str, ToolSpec]", known)
    attributes = dict.fromkeys(name for base in reversed(cls.__mro__) for name in base.__dict__)
    table: dict[str, ToolSpec] = {}
    for attribute in attributes:
        held = next(base.__dict__[attribute] for base in cls.__mro__ if attribute in base.__dict__)
        function = getattr(held, "__func__", held)
        mark = getattr(function, _MARK, None)
        if not (isinstance(mark, tuple) and callable(function)):
            continue
        name, description = mark
        if name in table:
            raise ValueError(f"{cls.__name__}: {table[name].attribute} and {attribute} are both the tool {name!r}")
        is_method = not isinstance(held, staticmethod)
        table[name] = compile_tool(
            function, name=name, attribute=attribute, description=description, is_method=is_method
        )
    setattr(cls, _TABLE, table)
    return table


class ToolEnvironment(Environment[Action, Observation, State]):
    """An environment whose methods marked with `tool` are its actions.

    A subclass implements ``reset`` and ``state``, and may override ``step`` (to count, to reward) calling
    ``super().step``. Tools run in the environment's thread; coroutine tools run there too, on an event loop of that
    thread, which stands still between calls. Who wants the server's own loop overrides ``step_async`` with
    ``return await self.step_on_loop(action, timeout_s)``.
    """

    def list_tools(self) -> list[Tool]:
        """The tools on offer."""
        return [spec.as_tool() for spec in tool_table(type(self)).values()]

    def tool_listing(self) -> list[dict[str, Any]]:
        """The tools on offer as ``tools/list`` of JSON-RPC answers them."""
        return [spec.as_listing() for spec in tool_table(type(self)).values()]

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> ToolResult:
        """Call one tool.

        Args:
            name: Its name.
            arguments: Its arguments by name.
            timeout_s: Seconds a coroutine tool may take; a plain one cannot be stopped.

        Raises:
            ToolCallError: No such tool, invalid arguments, the tool raised, or took too long.
            UsageError: A coroutine tool is called where a loop is running.
        """
        spec, values = self._bind(name, arguments)
        if spec.is_async:
            return _thread_loop.run(lambda: self._await_tool(spec, values, timeout_s))
        try:
            return spec.result(getattr(self, spec.attribute)(**values))
        except Exception as error:
            raise _failed(spec, error) from error

    async def call_tool_async(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> ToolResult:
        """Call one tool from a running loop; plain ones run in a worker thread unless the class is not ``BLOCKING``.

        Raises:
            ToolCallError: No such tool, invalid arguments, the tool raised, or took too long.
        """
        spec, values = self._bind(name, arguments)
        if spec.is_async:
            return await self._await_tool(spec, values, timeout_s)
        if self.BLOCKING:
            return await asyncio.to_thread(self.call_tool, name, arguments)
        return self.call_tool(name, arguments)

    def tool_reward(self, name: str, arguments: Mapping[str, Any], result: ToolResult) -> float | None:
        """Reward of a successful call; None unless a subclass says otherwise."""
        return None

    def step_other(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """Take an action that is no tool call.

        Raises:
            TypeError: Always, unless a subclass implements it.
        """
        raise TypeError(f"{type(self).__name__} takes tool calls, not {type(action).__name__}")

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """List the tools or call one.

        Args:
            action: `ListToolsAction`, `CallToolAction`, or what ``step_other`` takes.
            timeout_s: Seconds a coroutine tool may take.
            **kwargs: Passed on to ``step_other``.
        """
        if isinstance(action, CallToolAction):
            try:
                result = self.call_tool(action.tool_name, action.arguments, timeout_s=timeout_s)
            except ToolCallError as error:
                return self._refused(action, error)
            return self._answered(action, result)
        if isinstance(action, ListToolsAction):
            return self._apply_transform(ListToolsObservation(tools=self.list_tools()))
        return self.step_other(action, timeout_s=timeout_s, **kwargs)

    async def step_on_loop(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """What ``step_async`` of a subclass may await instead of ``step``; same arguments."""
        if not isinstance(action, CallToolAction):
            return ToolEnvironment.step(self, action, timeout_s, **kwargs)
        try:
            result = await self.call_tool_async(action.tool_name, action.arguments, timeout_s=timeout_s)
        except ToolCallError as error:
            return self._refused(action, error)
        return self._answered(action, result)

    def _bind(self, name: str, arguments: Mapping[str, Any] | None) -> tuple[ToolSpec, dict[str, Any]]:
        spec = tool_table(type(self)).get(name)
        if spec is None:
            raise ToolCallError(f"Unknown tool: {name!r}", kind=ToolErrorType.TOOL_NOT_FOUND)
        try:
            return spec, spec.bind({} if arguments is None else arguments)
        except ValidationError as error:
            raise ToolCallError(str(error), kind=ToolErrorType.INVALID_ARGS) from error

    async def _await_tool(self, spec: ToolSpec, values: dict[str, Any], timeout_s: float | None) -> ToolResult:
        call = asyncio.ensure_future(getattr(self, spec.attribute)(**values))
        try:
            done, _ = await asyncio.wait([call], timeout=timeout_s)
            if not done:
                raise ToolCallError(
                    f"Tool '{spec.name}' timed out after {timeout_s:g} seconds", kind=ToolErrorType.TIMEOUT
                )
            return spec.result(call.result())
        except ToolCallError:
            raise
        except Exception as error:
            raise _failed(spec, error) from error
        finally:
            call.cancel()

    def _answered(self, action: CallToolAction, result: ToolResult) -> Observation:
        reward = self.tool_reward(action.tool_name, action.arguments, result)
        return self._apply_transform(CallToolObservation(tool_name=action.tool_name, result=result, reward=reward))

    def _refused(self, action: CallToolAction, error: ToolCallError) -> Observation:
        failure = ToolError(error_type=error.kind, message=str(error))
        return self._apply_transform(CallToolObservation(tool_name=action.tool_name, error=failure))


def _failed(spec: ToolSpec, error: Exception) -> ToolCallError:
    # Agents provoke errors all day: the caller is told, and the traceback is there for who looks for it.
    logger.debug("tool %s raised", spec.name, exc_info=error)
    return ToolCallError(f"Error calling tool '{spec.name}': {str(error) or type(error).__name__}")


class _OwnLoop:
    """An event loop that closes with its holder: an unclosed one would warn."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __del__(self) -> None:
        self.loop.close()


class _ThreadLoop(threading.local):
    """The event loop of an environment's thread, made when the first coroutine tool runs there."""

    own: _OwnLoop | None = None

    def run(self, start: Callable[[], Coroutine[Any, Any, ToolResult]]) -> ToolResult:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.own = self.own or _OwnLoop()
            return self.own.loop.run_until_complete(start())
        raise UsageError("a coroutine tool cannot block a running loop", hint="await env.call_tool_async(…)")


_thread_loop = _ThreadLoop()
