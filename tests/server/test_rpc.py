"""JSON-RPC: every method and error code, over HTTP on a real application and on a context of our own."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from openenv_sandbox.models import (
    Action,
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Observation,
    State,
    Tool,
)
from openenv_sandbox.server import mcp
from openenv_sandbox.server.app import create_app
from openenv_sandbox.server.environment import Environment
from openenv_sandbox.server.tools import ToolEnvironment, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


class Tools(ToolEnvironment):
    def __init__(self) -> None:
        self.said: list[str] = []

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=len(self.said))

    @tool
    def say(self, text: str) -> int:
        self.said.append(text)
        return len(self.said)

    @tool
    async def later(self, text: str) -> str:
        return text

    @tool
    def boom(self) -> None:
        raise ValueError("bad thing")

    @tool
    def odd(self) -> None:
        return object()  # type: ignore[return-value]


class OnLoop(Tools):
    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return await self.step_on_loop(action, timeout_s)


class Plain(Environment[Action, Observation, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=[Tool(name="own", description="d", input_schema={"type": "object"})])
        assert isinstance(action, CallToolAction)
        return CallToolObservation(tool_name=action.tool_name, result=action.arguments)

    @property
    def state(self) -> State:
        return State()


class OtherAction(Action):
    text: str = ""


@asynccontextmanager
async def served(env: Any, action: type[Action] = CallToolAction) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(env, action, Observation)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http
    await app.state.openenv_server.sessions.aclose()


async def rpc(http: httpx.AsyncClient, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "method": method, "params": params, "id": "one"}
    response = await http.post("/mcp", json=body)
    assert response.status_code == 200
    answer = response.json()
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] == "one"
    return answer


@pytest.mark.parametrize("env", [Tools, OnLoop])
async def test_tools_in_a_session(env: Any) -> None:
    """One environment from create to close, tools of both kinds, in a thread and on the loop.

    Mutation: build a throw-away environment although session_id is given
    """
    async with served(env) as http:
        session = (await rpc(http, "openenv/session/create"))["result"]["session_id"]
        listing = (await rpc(http, "tools/list", session_id=session))["result"]["tools"]
        assert [item["name"] for item in listing] == ["say", "later", "boom", "odd"]
        assert listing[0]["inputSchema"]["required"] == ["text"]
        for count in (1, 2):
            answer = await rpc(http, "tools/call", name="say", arguments={"text": "x"}, session_id=session)
            assert answer["result"]["data"] == count
        answer = await rpc(http, "tools/call", name="later", arguments={"text": "x"}, session_id=session)
        assert answer["result"]["structured_content"] == {"result": "x"}
        full = await rpc(http, "openenv/session/create")
        assert full["error"]["code"] == mcp.SERVER_ERROR
        assert full["error"]["data"] == {"active_sessions": 1, "max_sessions": 1}
        closed = await rpc(http, "openenv/session/close", session_id=session)
        assert closed["result"] == {"session_id": session, "closed": True}
        assert (await rpc(http, "tools/list", session_id=session))["error"]["code"] == mcp.INVALID_PARAMS
        assert "result" in await rpc(http, "openenv/session/create")


async def test_without_a_session_each_call_has_its_own_environment() -> None:
    """No state is carried over and no slot is taken.

    Mutation: count throw-away environments as sessions
    """
    async with served(Tools) as http:
        await rpc(http, "openenv/session/create")
        for _ in range(2):
            answer = await rpc(http, "tools/call", name="say", arguments={"text": "x"})
            assert answer["result"]["data"] == 1


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("initialize", {}, mcp.METHOD_NOT_FOUND, "Method not found: initialize"),
        ("tools/call", {}, mcp.INVALID_PARAMS, "Missing 'name' in params"),
        ("tools/call", {"name": 5}, mcp.INVALID_PARAMS, "must be a string"),
        ("tools/call", {"name": "say", "arguments": [1]}, mcp.INVALID_PARAMS, "an object"),
        ("tools/call", {"name": "zzz"}, mcp.INTERNAL_ERROR, "Unknown tool: 'zzz'"),
        ("tools/call", {"name": "say"}, mcp.INTERNAL_ERROR, "Missing required argument"),
        ("tools/call", {"name": "boom"}, mcp.INTERNAL_ERROR, "Error calling tool 'boom': bad thing"),
        ("tools/call", {"name": "odd"}, mcp.INTERNAL_ERROR, "no wire form"),
        ("tools/list", {"session_id": "nope"}, mcp.INVALID_PARAMS, "Unknown session_id: nope"),
        ("openenv/session/close", {}, mcp.INVALID_PARAMS, "Invalid params - 'session_id' is required"),
        ("openenv/session/close", {"session_id": 5}, mcp.INVALID_PARAMS, "Unknown session_id: 5"),
    ],
)
async def test_errors(method: str, params: dict[str, Any], code: int, words: str) -> None:
    """Each has its code and says what is wrong; `data` is there and null.

    Mutation: answer a failed tool with a result
    """
    async with served(Tools) as http:
        error = (await rpc(http, method, **params))["error"]
    assert error["code"] == code
    assert words in error["message"]
    assert error["data"] is None


async def test_an_environment_without_tools_says_so() -> None:
    """Where step takes other actions there is nothing to call.

    Mutation: hand the call to step whatever its action class
    """
    async with served(Plain, OtherAction) as http:
        for method, params in (("tools/list", {}), ("tools/call", {"name": "own"})):
            error = (await rpc(http, method, **params))["error"]
            assert (error["code"], error["message"]) == (mcp.INTERNAL_ERROR, "Environment does not support MCP")


async def test_an_environment_that_takes_tool_calls_by_step() -> None:
    """Its own step answers for it.

    Mutation: offer tools of ToolEnvironment only
    """
    async with served(Plain) as http:
        tools = (await rpc(http, "tools/list"))["result"]["tools"]
        assert tools == [{"name": "own", "description": "d", "inputSchema": {"type": "object"}}]
        result = (await rpc(http, "tools/call", name="own", arguments={"a": 1}))["result"]
        assert result["result"] == {"a": 1}


async def test_a_factory_that_fails_is_a_server_error() -> None:
    """Code -32000 with the factory's name, and no text of the exception.

    Mutation: let the factory's exception out
    """

    def broken() -> Tools:
        raise RuntimeError("secret of the factory")

    async with served(broken) as http:
        error = (await rpc(http, "openenv/session/create"))["error"]
    assert error["code"] == mcp.SERVER_ERROR
    assert error["data"] == {"factory_name": "broken"}
    assert "secret" not in error["message"]


@pytest.mark.parametrize("body", [b"{oops", b"[]", b'"x"', b"null", b"1", b""])
async def test_what_is_no_object_is_a_parse_error(body: bytes) -> None:
    """Batches included.

    Mutation: validate a list as a request
    """
    async with served(Tools) as http:
        response = await http.post("/mcp", content=body)
    failure = {"code": mcp.PARSE_ERROR, "message": "Parse error", "data": None}
    assert response.json() == {"jsonrpc": "2.0", "id": None, "error": failure}


class Context:
    """A context whose socket has a session, as on WS /mcp."""

    tool_actions = True

    def __init__(self, env: Any) -> None:
        self.env = env
        self.id = "mine"
        self.own = self

    async def call(self, function: Callable[[Any], Any]) -> Any:
        return function(self.env)

    async def step(self, action: Any) -> Any:
        raise AssertionError(action)

    def find(self, session_id: str) -> Any:
        return {"other": self}.get(session_id)

    async def create(self) -> Any:
        raise AssertionError("a socket has its session")

    async def close(self, session_id: str) -> bool:
        return session_id != "other"

    def throwaway(self) -> Any:
        raise AssertionError("a socket has its session")


async def test_on_a_socket() -> None:
    """The socket's own session is used, named, and not closed this way; one attached elsewhere closes later.

    Mutation: make a second session for openenv/session/create
    """
    context = Context(Tools())

    async def ask(method: str, **params: Any) -> Any:
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 3})
        return json.loads(await mcp.answer_frame(text, context))

    assert (await ask("openenv/session/create"))["result"] == {"session_id": "mine"}
    assert len((await ask("tools/list", session_id="ignored here"))["result"]["tools"]) == 4
    own = (await ask("openenv/session/close", session_id="mine"))["error"]
    assert own["code"] == mcp.INVALID_REQUEST
    assert own["message"] == "Cannot close active WebSocket-managed session via MCP method"
    other = (await ask("openenv/session/close", session_id="other"))["result"]
    assert other == {"session_id": "other", "closed": False, "closing": True}
    broken = json.loads(await mcp.answer_frame("nope", context))["error"]
    assert broken["message"] == "Parse error: Expecting value: line 1 column 1 (char 0)"
    array = json.loads(await mcp.answer_frame("[]", context))["error"]
    assert array["code"] == mcp.INVALID_REQUEST
