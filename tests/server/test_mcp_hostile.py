"""MCP and HTTP clients that leave at the wrong moment or send too much."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from openenv_sandbox.server.bodies import BodyLimit
from tests.server.test_http import client
from tests.server.test_mcp_http import NEWEST, served

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


async def test_who_leaves_before_the_answer_leaves_no_session() -> None:
    """Nobody knows the id of a session whose ``initialize`` found no listener, so nobody could ever end it.

    Mutation: keep it until the idle hour
    """
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": NEWEST}}
    async with served() as (agents, env, server):
        app: Any = agents().http._transport.app  # type: ignore[attr-defined]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        came = [{"type": "http.request", "body": json.dumps(opening).encode()}]

        async def receive() -> Any:
            return came.pop() if came else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        await app(scope, receive, send)
        assert (env.made, env.closed, server.active_sessions) == (1, 1, 0)


@pytest.mark.parametrize("path", ["/mcp", "/reset", "/step", "/Recording/tasks", "/web/step"])
def test_a_body_larger_than_a_message_may_be(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused whether or not its length is told, with the setting that allows it; routes of others take what they like.

    Mutation: read whatever comes; believe the length alone
    """
    monkeypatch.setenv("OPENENV_MAX_MESSAGE_MB", "0.01")
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", "1")
    http = client()
    headers = {"content-type": "application/json"}
    large = b'{"a": "' + b"x" * 20_000 + b'"}'
    for content in (large, pieces(large)):
        answer = http.post(path, content=content, headers=headers)
        assert answer.status_code == 413, answer.text
        assert "OPENENV_MAX_MESSAGE_MB" in answer.text
    assert http.post("/elsewhere", content=large).status_code == 404
    assert http.post(path, content=b"{}", headers=headers).status_code != 413


async def test_a_body_whose_length_is_told_is_refused_unread() -> None:
    """Mutation: count what comes alone"""
    answers: list[Any] = []

    async def passed_on(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("passed on")

    async def receive() -> Any:
        raise AssertionError("read")

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "POST", "path": "/step", "headers": [(b"content-length", b"1001")]}
    await BodyLimit(passed_on, 1000)(scope, receive, send)
    assert answers[0]["status"] == 413


def pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 1000):
        yield body[start : start + 1000]


async def test_a_session_of_one_agent_is_not_named_to_another() -> None:
    """No id is in an error or a log, and none can be guessed from another.

    Mutation: number the sessions
    """
    async with served() as (agents, _, _):
        one, two = agents(), agents()
        await one.open()
        await two.open()
        ids = [agent.headers["mcp-session-id"] for agent in (one, two)]
        assert len({*ids}) == 2
        for changed in (ids[0][:-1], ids[0].upper(), ids[0] + " x", ids[0] + "\x00"):
            try:
                gone = await two.http.delete("/mcp", headers={**two.headers, "mcp-session-id": changed})
            except httpx.HTTPError:
                continue
            assert gone.status_code == 404
            assert ids[0] not in gone.text or changed in ids[0]
        assert (await one.ask("ping"))["result"] == {}


async def test_a_foreign_page_reaches_no_agent_route(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the body's type says, as browsers send simple ones without asking first.

    Mutation: check the Origin of WebSockets alone
    """
    caplog.set_level(logging.INFO)
    async with served() as (agents, env, server):
        for origin in ("http://evil.example", "null", "http://127.0.0.1.evil.example", "http://127.0.0.1:1"):
            for content_type in ("text/plain", "application/json"):
                headers = {"origin": origin, "content-type": content_type}
                opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": NEWEST}}
                answer = await agents().http.post("/mcp", content=json.dumps(opening), headers=headers)
                assert answer.status_code == 403, origin
            assert (await agents().http.delete("/mcp", headers={"origin": origin})).status_code == 403
        rebound = await agents().http.post("/mcp", json=opening, headers={"host": "evil.example"})
        assert rebound.status_code == 403
        assert (env.made, server.active_sessions) == (0, 0)
