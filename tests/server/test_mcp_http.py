"""MCP over streamable HTTP, request by request."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from openenv_sandbox.models import CallToolAction, Observation, State
from openenv_sandbox.server import mcp
from openenv_sandbox.server.app import create_app
from openenv_sandbox.server.mcp_http import VERSIONS
from openenv_sandbox.server.tools import ToolEnvironment, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

NEWEST = VERSIONS[-1]


class Point(BaseModel):
    x: int
    y: int = 0


class Agentic(ToolEnvironment):
    """Counts what happens to it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made = resets = closed = 0
    broken = False

    def __init__(self) -> None:
        type(self).made += 1
        self.count = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        if self.broken:
            raise ValueError("no board")
        assert (seed, episode_id, kwargs) == (None, None, {})
        type(self).resets += 1
        self.count = 100
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.count)

    def close(self) -> None:
        type(self).closed += 1

    @tool
    def add(self, amount: int = 1) -> int:
        """Count up.

        Args:
            amount: How far.
        """
        self.count += amount
        return self.count

    @tool
    def move(self, to: Point, how: Literal["slow", "fast"] = "slow") -> Point:
        return to

    @tool
    def boom(self) -> None:
        raise ValueError("bad thing")


class Agent:
    """What a client keeps: its headers and the number of its last request."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.headers = {"accept": "application/json, text/event-stream"}
        self.last = 0

    async def post(self, message: Any, **headers: str) -> httpx.Response:
        return await self.http.post("/mcp", json=message, headers={**self.headers, **headers})

    async def ask(self, method: str, params: Any = None, **headers: str) -> Any:
        self.last += 1
        message = {"jsonrpc": "2.0", "id": self.last, "method": method}
        response = await self.post(message if params is None else {**message, "params": params}, **headers)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        answer = response.json()
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", self.last)
        return answer

    async def open(self, version: str = NEWEST) -> Any:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        response = await self.post({"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params})
        answer = response.json()
        if "mcp-session-id" in response.headers:
            self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
            self.headers["mcp-protocol-version"] = answer["result"]["protocolVersion"]
        return answer


@asynccontextmanager
async def served(capacity: int = 2, **settings: Any) -> AsyncIterator[tuple[Callable[[], Agent], type[Agentic], Any]]:
    counted: type[Agentic] = type("Counted", (Agentic,), {})
    app = create_app(counted, CallToolAction, Observation, max_concurrent_envs=capacity, **settings)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield lambda: Agent(http), counted, app.state.openenv_server
    await app.state.openenv_server.sessions.aclose()


@pytest.mark.parametrize("mode", ["simulation", "production"])
async def test_a_session_from_initialize_to_delete(mode: str) -> None:
    """The environment is built and reset once, keeps its state, and its slot is free after DELETE.

    Mutation: reset before each call; keep the slot after DELETE
    """
    async with served(mode=mode) as (agents, env, server):
        agent = agents()
        opened = (await agent.open())["result"]
        assert opened["protocolVersion"] == NEWEST
        assert opened["capabilities"] == {"tools": {"listChanged": False}}
        assert opened["serverInfo"]["name"] == "Counted"
        assert (await agent.post({"jsonrpc": "2.0", "method": "notifications/initialized"})).status_code == 202
        assert (await agent.ask("ping"))["result"] == {}
        tools = {item["name"]: item for item in (await agent.ask("tools/list"))["result"]["tools"]}
        assert list(tools) == ["add", "move", "boom"]
        assert tools["add"]["description"] == "Count up."
        assert None not in tools["add"].values()
        for count in (101, 102):
            result = (await agent.ask("tools/call", {"name": "add", "_meta": {"progressToken": 1}}))["result"]
            assert result["structuredContent"] == {"result": count}
            assert result["content"] == [{"type": "text", "text": str(count)}]
            assert result["isError"] is False
        assert (env.made, env.resets, env.closed, server.active_sessions) == (1, 1, 0, 1)
        assert (await agent.http.delete("/mcp", headers=agent.headers)).status_code == 204
        assert (env.closed, server.active_sessions) == (1, 0)
        assert (await agent.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404
        assert (await agent.http.delete("/mcp", headers=agent.headers)).status_code == 404


async def test_results_of_failed_calls() -> None:
    """A tool that raises or gets bad arguments is a result that says so; a tool that is none is an error.

    Mutation: answer snake_case keys, with which a failure looks like a success to stock clients
    """
    async with served() as (agents, _, _):
        agent = agents()
        await agent.open()
        raised = (await agent.ask("tools/call", {"name": "boom", "arguments": {}}))["result"]
        assert raised["isError"] is True
        assert "bad thing" in raised["content"][0]["text"]
        for arguments in ({}, {"to": {"x": "no"}}, {"to": {"x": 1}, "how": "never"}, {"to": {"x": 1}, "extra": 1}):
            answer = await agent.ask("tools/call", {"name": "move", "arguments": arguments})
            assert answer["result"]["isError"] is True, arguments
        moved = (await agent.ask("tools/call", {"name": "move", "arguments": {"to": {"x": "1"}}}))["result"]
        assert moved["structuredContent"] == {"x": 1, "y": 0}
        assert (await agent.ask("tools/call", {"name": "none"}))["error"]["code"] == mcp.INVALID_PARAMS
        assert (await agent.ask("tools/call", {"name": 3}))["error"]["code"] == mcp.INVALID_PARAMS
        assert (await agent.ask("tools/call"))["error"]["code"] == mcp.INVALID_PARAMS
        assert (await agent.ask("resources/list"))["error"]["code"] == mcp.METHOD_NOT_FOUND


async def test_two_agents_and_a_full_server() -> None:
    """Each has an environment of its own; a third is refused in words and nothing of it stays.

    Mutation: share one session between agents
    """
    async with served() as (agents, env, server):
        first, second, third = agents(), agents(), agents()
        await first.open()
        await second.open()
        await first.ask("tools/call", {"name": "add", "arguments": {"amount": 5}})
        result = (await second.ask("tools/call", {"name": "add"}))["result"]
        assert result["structuredContent"] == {"result": 101}
        refused = (await third.open())["error"]
        assert refused["code"] == mcp.SERVER_ERROR
        assert refused["data"] == {"active_sessions": 2, "max_sessions": 2}
        assert (env.made, server.active_sessions) == (2, 2)
        assert "tools" in (await third.ask("tools/list", **{"mcp-protocol-version": NEWEST}))["result"]
        call = {"name": "add", "arguments": {}}
        answer = await third.ask("tools/call", call, **{"mcp-protocol-version": NEWEST})
        assert "initialize first" in answer["error"]["message"]


async def test_an_environment_that_cannot_be_reset() -> None:
    """The reason is told and the slot is free again.

    Mutation: leave the session of a failed reset open
    """
    async with served() as (agents, env, server):
        env.broken = True
        assert "no board" in (await agents().open())["error"]["message"]
        assert (env.closed, server.active_sessions) == (1, 0)
        env.broken = False
        assert "result" in await agents().open()


@pytest.mark.parametrize(("asked", "granted"), [(version, version) for version in VERSIONS] + [("1999-01-01", NEWEST)])
async def test_versions(asked: str, granted: str) -> None:
    """A version that is known is granted, another is answered with the newest.

    Mutation: echo whatever was asked for
    """
    async with served() as (agents, _, _):
        assert (await agents().open(asked))["result"]["protocolVersion"] == granted


async def test_what_is_refused() -> None:
    """Malformed and misplaced requests, each with the status the specification gives it."""
    async with served() as (agents, env, _):
        agent = agents()
        await agent.open()
        ask = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await agent.post(ask, accept="text/html")).status_code == 406
        assert (await agent.post(ask, accept="*/*")).status_code == 200
        assert (await agent.post(ask, **{"mcp-protocol-version": "1999-01-01"})).status_code == 400
        assert (await agent.post({"jsonrpc": "1.0", "id": 1, "method": "ping"})).status_code == 400
        assert (await agent.post({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]})).status_code == 400
        broken = await agent.http.post("/mcp", content=b"{", headers=agent.headers)
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, mcp.PARSE_ERROR)
        assert (await agent.http.get("/mcp", headers=agent.headers)).status_code == 405
        assert (await agent.http.delete("/mcp")).status_code == 400
        stranger = {**agent.headers, "mcp-session-id": "0" * 32}
        assert (await agent.http.delete("/mcp", headers=stranger)).status_code == 404
        gone = await agent.post({"jsonrpc": "2.0", "method": "notifications/x"}, **{"mcp-session-id": "0"})
        assert gone.status_code == 404
        discover = await agent.ask("server/discover", {"_meta": {}}, **{"mcp-protocol-version": "2026-07-28"})
        assert discover["error"]["code"] == mcp.METHOD_NOT_FOUND
        for fields in ({"id": 1, "params": {"protocolVersion": 3}}, {"params": {"protocolVersion": NEWEST}}):
            opening = {"jsonrpc": "2.0", "method": "initialize", **fields}
            assert (await agents().post(opening)).status_code == 400, fields
        assert (await agent.post({"jsonrpc": "2.0", "id": 9, "result": {}})).status_code == 202
        assert env.made == 1


async def test_batches_where_the_version_has_them() -> None:
    """Answers of those that want one, in a list; 202 when none does; elsewhere one message for each POST.

    Mutation: answer notifications
    """
    async with served() as (agents, _, _):
        agent = agents()
        await agent.open("2025-03-26")
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        both = await agent.post([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, note])
        assert both.json() == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
        assert (await agent.post([note])).status_code == 202
        assert (await agent.post([])).status_code == 400
        newer = agents()
        await newer.open()
        assert (await newer.post([note])).status_code == 400


async def test_the_older_form_beside_it() -> None:
    """Requests without the headers and methods of MCP are answered as ever, failures included.

    Mutation: take every POST for MCP
    """
    async with served() as (agents, _, _):
        http = agents().http
        answer = (await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).json()
        assert answer["result"]["tools"][0]["title"] is None
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add"}}
        result = (await http.post("/mcp", json=call)).json()["result"]
        assert (result["data"], result["is_error"]) == (1, False)
        unknown = (await http.post("/mcp", json={"jsonrpc": "2.0", "id": 3, "method": "zzz"})).json()["error"]
        assert (unknown["code"], unknown["data"]) == (mcp.METHOD_NOT_FOUND, None)
        broken = await http.post("/mcp", content=b"{")
        assert (broken.status_code, broken.json()["error"]["code"]) == (200, mcp.PARSE_ERROR)
