"""Tools: schemas from type hints, validated arguments, direct dispatch, and the wire form of results."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from openenv_sandbox.errors import UsageError
from openenv_sandbox.models import (
    Action,
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Observation,
    State,
    ToolErrorType,
)
from openenv_sandbox.server.tools import RESERVED_TOOL_NAMES, ToolCallError, ToolEnvironment, tool, tool_table
from openenv_sandbox.wire import codec


class Point(BaseModel):
    x: int
    y: float = 1.5


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Bench(ToolEnvironment):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()

    @tool
    def add(self, a: int, b: int = 2, unit: Literal["m", "s"] = "m") -> int:
        """Add two numbers.

        More about it.

        Args:
            a: the first
                of both
            b (int): the second

        Returns:
            Their sum.
        """
        return a + b

    @tool
    def where(self, point: Point) -> Point:
        return point

    @tool
    def grow(self, tree: Tree) -> None:
        """Nothing comes back."""

    @tool(name="say", description="Says it.")
    def _say(self, text):  # type: ignore[no-untyped-def]
        return text

    @tool
    def boom(self) -> str:
        raise ValueError("bad thing")

    @tool
    async def later(self, value: Annotated[int, Field(ge=0, description="how much")], wait: bool = False) -> int:
        await asyncio.Event().wait() if wait else await asyncio.sleep(0)
        return value

    @tool
    @staticmethod
    def fixed() -> list[int]:
        return [1, 2]


def call(name: str, **arguments: Any) -> CallToolObservation:
    observation = Bench().step(CallToolAction(tool_name=name, arguments=arguments), timeout_s=0.05)
    assert isinstance(observation, CallToolObservation)
    return observation


def wire(observation: CallToolObservation) -> Any:
    return json.loads(codec.dumps(observation.result))


def test_schemas_come_from_hints_and_docstring() -> None:
    """Types, defaults, choices and nested models inline; titles dropped; texts of the Args section.

    Mutation: leave generated titles in the schema
    """
    specs = tool_table(Bench)
    assert list(specs) == ["add", "where", "grow", "say", "boom", "later", "fixed"]
    assert specs["add"].description == "Add two numbers.\n\nMore about it."
    assert specs["add"].input_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["a"],
        "properties": {
            "a": {"type": "integer", "description": "the first\nof both"},
            "b": {"type": "integer", "default": 2, "description": "the second"},
            "unit": {"type": "string", "enum": ["m", "s"], "default": "m"},
        },
    }
    point = {
        "type": "object",
        "required": ["x"],
        "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 1.5}},
    }
    assert specs["where"].input_schema["properties"]["point"] == point
    assert specs["where"].output_schema == point
    assert specs["later"].input_schema["properties"]["value"] == {
        "type": "integer",
        "minimum": 0,
        "description": "how much",
    }
    assert specs["say"].description == "Says it."


def test_a_recursive_model_keeps_its_reference() -> None:
    """A type that contains itself cannot be put inline.

    Mutation: inline every definition (recursion without end)
    """
    schema = tool_table(Bench)["grow"].input_schema
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_compiled_once() -> None:
    """A second environment of the class uses the same table; a subclass has its own.

    Mutation: compile per instance
    """
    assert tool_table(Bench) is tool_table(Bench)

    class More(Bench):
        @tool
        def add(self, a: int) -> int:  # type: ignore[override]
            return a

    assert tool_table(More)["add"].input_schema["required"] == ["a"]
    assert "b" in tool_table(Bench)["add"].input_schema["properties"]


@pytest.mark.parametrize(
    ("name", "arguments", "data", "structured", "text"),
    [
        ("add", {"a": "3"}, 5, {"result": 5}, "5"),
        ("where", {"point": {"x": "4"}}, {"x": 4, "y": 1.5}, {"x": 4, "y": 1.5}, '{"x":4,"y":1.5}'),
        ("grow", {"tree": {"name": "a", "children": [{"name": "b"}]}}, None, None, None),
        ("say", {"text": "hi"}, "hi", None, "hi"),
        ("say", {"text": {"a": 1}}, {"a": 1}, {"a": 1}, '{"a":1}'),
        ("later", {"value": 7}, 7, {"result": 7}, "7"),
        ("fixed", {}, [1, 2], {"result": [1, 2]}, "[1,2]"),
    ],
)
def test_results_have_the_wire_form(
    name: str, arguments: dict[str, Any], data: Any, structured: Any, text: Any
) -> None:
    """Coerced arguments in; content, structured content and data out, for plain, coroutine and static functions.

    Mutation: give `data` as text
    """
    observation = call(name, **arguments)
    assert observation.error is None
    content = [] if text is None else [{"type": "text", "text": text, "annotations": None, "meta": None}]
    wrapped = structured is not None and set(structured) == {"result"}
    assert wire(observation) == {
        "content": content,
        "structured_content": structured,
        "meta": {"fastmcp": {"wrap_result": True}} if wrapped else None,
        "data": data,
        "is_error": False,
    }
    assert observation.reward is None
    assert not observation.done


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "words"),
    [
        ("add", {}, "invalid_args", "a\n  Missing required argument"),
        ("add", {"a": "x"}, "invalid_args", "a\n  Input should be a valid integer"),
        ("add", {"a": 1, "c": 1}, "invalid_args", "c\n  Unexpected keyword argument"),
        ("add", {"a": 1, "unit": "k"}, "invalid_args", "unit\n  Input should be 'm' or 's'"),
        ("where", {"point": {"x": "q"}}, "invalid_args", "point.x\n  Input should be a valid integer"),
        ("later", {"value": -1}, "invalid_args", "value\n  Input should be greater than or equal to 0"),
        ("boom", {}, "execution_error", "Error calling tool 'boom': bad thing"),
        ("later", {"value": 1, "wait": True}, "timeout", "Tool 'later' timed out after 0.05 seconds"),
        ("nope", {}, "tool_not_found", "Unknown tool: 'nope'"),
        ("_say", {"text": "x"}, "tool_not_found", "Unknown tool: '_say'"),
        ("reset", {}, "tool_not_found", "Unknown tool: 'reset'"),
    ],
)
def test_failures_are_observations(name: str, arguments: dict[str, Any], kind: str, words: str) -> None:
    """A call that fails says which way, and names the argument; it does not raise.

    Mutation: report invalid arguments as execution_error
    """
    observation = call(name, **arguments)
    assert observation.error is not None
    assert observation.error.error_type is ToolErrorType(kind)
    assert words in observation.error.message
    assert observation.result is None


@pytest.mark.parametrize("name", sorted(RESERVED_TOOL_NAMES))
def test_reserved_names_are_refused_at_definition(name: str) -> None:
    """A tool called like a method of the protocol cannot be defined, by its own name or by name=.

    Mutation: check the function's name only
    """
    with pytest.raises(ValueError, match=f"'{name}'"):

        @tool(name=name)
        def other() -> None: ...


def test_signatures_that_cannot_be_called_by_name_are_refused() -> None:
    """*args, **kwargs and positional-only parameters have no schema.

    Mutation: skip the check of the parameters
    """
    for function in (lambda *args: args, lambda **kw: kw):
        with pytest.raises(TypeError, match="cannot be passed by name"):
            tool(name="x")(function)


def test_unresolvable_hint_names_the_tool() -> None:
    """A hint that cannot be resolved is an error that says which tool has it.

    Mutation: let the NameError through
    """

    class Broken(Bench):
        @tool
        def lost(self, value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match=r"tool 'lost'.*Missing"):
        tool_table(Broken)


def test_two_methods_for_one_name_are_refused() -> None:
    """Which of two would be called cannot be guessed.

    Mutation: let the later definition win
    """

    class Twice(Bench):
        @tool(name="add")
        def plus(self) -> None: ...

    with pytest.raises(ValueError, match="add and plus"):
        tool_table(Twice)


def test_constructor_need_not_run_and_overrides_count_once() -> None:
    """A subclass without super().__init__() works; its step override sees every action once, coroutine tools included.

    Mutation: route coroutine tools past an overridden step
    """

    class Counting(Bench):
        def __init__(self) -> None:
            self.count = 0

        def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            self.count += 1
            return super().step(action, timeout_s, **kwargs)

    env = Counting()
    assert isinstance(env.step(ListToolsAction()), ListToolsObservation)
    env.step(CallToolAction(tool_name="later", arguments={"value": 1}))
    env.step(CallToolAction(tool_name="add", arguments={"a": 1}))
    assert env.count == 3
    with pytest.raises(TypeError, match="takes tool calls, not Action"):
        env.step(Action())


def test_reward_hook() -> None:
    """A subclass rewards successful calls only.

    Mutation: ask for a reward after a failed call
    """

    class Paid(Bench):
        def tool_reward(self, name: str, arguments: Any, result: Any) -> float:
            return float(result.data)

    assert Paid().step(CallToolAction(tool_name="add", arguments={"a": 1})).reward == 3.0
    assert Paid().step(CallToolAction(tool_name="boom")).reward is None


def test_coroutine_tools_share_one_loop_per_thread() -> None:
    """What a coroutine tool binds to its loop is still good in the next call.

    Mutation: run each call on a loop of its own
    """

    class Bound(Bench):
        loops: list[asyncio.AbstractEventLoop] = []  # noqa: RUF012

        @tool
        async def note(self) -> None:
            self.loops.append(asyncio.get_running_loop())

    def calls() -> None:
        Bound().call_tool("note")
        Bound().call_tool("note")

    for _ in range(2):
        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
    first, second, third, fourth = Bound.loops
    assert first is second
    assert third is fourth
    assert first is not third


@pytest.mark.anyio
async def test_inside_a_running_loop() -> None:
    """The coroutine face works there; the blocking one says what to do instead.

    Mutation: run a coroutine tool by asyncio.run inside a running loop
    """
    env = Bench()
    assert (await env.call_tool_async("later", {"value": 3})).data == 3
    assert (await env.call_tool_async("add", {"a": 3})).data == 5
    with pytest.raises(UsageError, match="call_tool_async"):
        env.call_tool("later", {"value": 3})
    with pytest.raises(ToolCallError, match="timed out"):
        await env.call_tool_async("later", {"value": 3, "wait": True}, timeout_s=0.01)
    observation = await env.step_on_loop(CallToolAction(tool_name="later", arguments={"value": 4}))
    assert isinstance(observation, CallToolObservation)
    assert observation.result.data == 4
