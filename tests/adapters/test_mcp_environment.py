"""MCPEnvironment: direct use with and without a loop, and served over both ways to its tools."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pytest
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation, ListToolsAction, ToolErrorType
from openenv.core.env_server.types import Action, Observation, State

from tests.adapters.served import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Rolls = Any

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Rolls]:
    pytest.importorskip("fastmcp", reason="FastMCP is not installed: pip install 'openenv[core]'")
    monkeypatch.syspath_prepend(PACKAGES)
    made: Any = import_module("rolls_env.server.rolls_environment").Rolls
    return cast("Callable[[], Rolls]", made)


@pytest.fixture
def env(make: Callable[[], Rolls]) -> Iterator[Rolls]:
    made = make()
    yield made
    made.close()


def call(name: str, **arguments: Any) -> CallToolAction:
    return CallToolAction(tool_name=name, arguments=arguments)


def result(observation: Observation) -> Any:
    assert isinstance(observation, CallToolObservation)
    assert observation.error is None, observation.error
    assert observation.reward is None
    assert observation.done is False
    return observation.result


def test_a_result_is_an_object_here_and_a_dict_on_the_wire(env: Rolls) -> None:
    from openenv.core.env_server.serialization import serialize_observation

    observation = env.step(call("add", a="40"))
    value = result(observation)
    assert value.data == 42
    assert type(value.data) is int
    assert value.content[0].text == "42"
    sent = serialize_observation(observation)
    assert sent["observation"]["result"] == {
        "content": [{"type": "text", "text": "42", "annotations": None, "meta": None}],
        "structured_content": {"result": 42},
        "meta": {"fastmcp": {"wrap_result": True}},
        "data": 42,
        "is_error": False,
    }
    assert result(env.step(call("describe", text="abc"))).data == {"text": "abc", "length": 3}
    assert result(env.step(call("named"))).data == "rolls"


async def test_both_ways_of_stepping_count_once(env: Rolls) -> None:
    env.step(call("add", a=1))
    assert env.state.step_count == 1
    await env.step_async(call("add", a=1))
    assert env.state.step_count == 2
    await env.step_async(ListToolsAction())
    assert env.state.step_count == 3


async def test_an_override_of_step_alone_is_what_a_step_is(make: Callable[[], Rolls]) -> None:
    from openenv.core.env_server.mcp_environment import MCPEnvironment

    base: Any = make

    class OnlyStep(base):  # type: ignore[misc]
        seen = 0
        step_async = MCPEnvironment.step_async

        def step(self, action: Action) -> Observation:
            self.seen += 1
            return MCPEnvironment.step(self, action)

    only = OnlyStep()
    assert result(await only.step_async(call("add", a=1), timeout_s=5.0)).data == 3
    assert only.seen == 1


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        (call("nope"), ToolErrorType.TOOL_NOT_FOUND, "nope"),
        (call("add"), ToolErrorType.INVALID_ARGS, "a"),
        (call("add", a="x"), ToolErrorType.INVALID_ARGS, "integer"),
        (call("add", a=1, c=3), ToolErrorType.INVALID_ARGS, "c"),
        (call("boom"), ToolErrorType.EXECUTION_ERROR, "it broke"),
    ],
)
def test_a_call_that_fails_says_how(env: Rolls, action: CallToolAction, kind: ToolErrorType, words: str) -> None:
    observation = env.step(action)
    assert isinstance(observation, CallToolObservation)
    assert observation.result is None
    assert observation.error is not None
    assert observation.error.error_type is kind
    assert words in observation.error.message


async def test_a_tool_that_takes_too_long_is_given_up(env: Rolls) -> None:
    observation = await env.step_async(call("forever"), timeout_s=0.01)
    assert isinstance(observation, CallToolObservation)
    assert observation.error is not None
    assert observation.error.error_type is ToolErrorType.TIMEOUT


def test_tools_of_a_mode_are_there_in_that_mode_alone(env: Rolls) -> None:
    def names() -> set[str]:
        return {tool.name for tool in env.step(ListToolsAction()).tools}

    common = {"add", "describe", "named", "boom", "forever"}
    assert names() == common
    env._mode = "production"
    assert names() == common | {"look"}
    assert result(env.step(call("look"))).data == "production"
    env._mode = "simulation"
    assert names() == common | {"peek"}
    assert env.step(call("look")).error is not None
    assert set(env.get_callables()) == common | {"peek"}


@pytest.mark.parametrize("name", ["reset", "step", "state", "close"])
def test_reserved_names_are_refused_on_the_server_and_in_the_decorator(env: Rolls, name: str) -> None:
    FastMCP: Any = import_module("fastmcp").FastMCP

    def function() -> str:
        return ""

    function.__name__ = name
    for mode in (None, "production"):
        with pytest.raises(ValueError, match=name):
            env.tool(mode)(function)
    server: Any = FastMCP("bad")
    server.tool(function)
    with pytest.raises(ValueError, match=name):
        type(env).__mro__[1].__init__(env, server)  # type: ignore[misc]
    with pytest.raises(ValueError, match="mode must be one of"):
        env.tool("staging")


async def test_a_session_lists_and_calls_and_closing_lets_go(env: Rolls) -> None:
    async with env.mcp_session() as session:
        tools = {tool.name: tool for tool in await session.list_tools()}
        assert tools["add"].input_schema["required"] == ["a"]
        assert (await session.call_tool("add", {"a": 1})).data == 3
    assert env.mcp_client is not None
    async with env.mcp_client as client:
        assert (await client.call_tool("add", {"a": 2})).data == 4
    env.close()
    assert env.mcp_client is None
    assert env.mcp_server is None


def test_code_uses_tools_as_functions(env: Rolls) -> None:
    assert env.supports_code_mode
    assert env.execute_code("result = add(1, b=add(2))").metadata == {"result": 5}
    assert env.execute_code("x = 1").metadata == {"result": None}
    assert env.execute_code("boom()").metadata == {"error": "it broke"}
    assert "error" in env.execute_code("raise SystemExit(3)").metadata


def test_other_actions_go_to_the_environment(env: Rolls) -> None:
    assert env.step(Action()).metadata == {"error": "no Action"}


def test_without_the_extra_the_error_names_it() -> None:
    code = """
import sys
sys.modules["fastmcp"] = None
from openenv.core.env_server.mcp_environment import MCPEnvironment
class Env(MCPEnvironment):
    def reset(self): ...
    def _step_impl(self, action, timeout_s=None, **kwargs): ...
    state = None
try:
    Env(object())
except ImportError as error:
    assert "pip install 'openenv[core]'" in str(error), error
else:
    raise AssertionError("constructed without FastMCP")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_the_state_is_untouched_by_the_class(make: Callable[[], Rolls]) -> None:
    first, second = make(), make()
    first.step(call("add", a=1))
    assert isinstance(second.state, State)
    assert (first.state.step_count, second.state.step_count) == (1, 0)
    assert first._mode_tools is not second._mode_tools
