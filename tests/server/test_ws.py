"""The conversation on /ws: every message, every error, and the order of things."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.server import create_app
from openenv_sandbox.wire import frames
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw
from tests.server.peers import Peer, Running, serving, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[Recording, Inline, Asynchronous])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    Recording.made.clear()
    async with serving(create_app(request.param, Do, Saw)) as running:
        yield running


@pytest.fixture
async def peer(server: Running) -> Peer:
    return await server.connect()


async def test_an_episode(server: Running, peer: Peer) -> None:
    assert (await peer.call({"type": "state"}))["data"] == {"episode_id": None, "step_count": 0}
    first = await peer.reset(seed=7, episode_id="ep-7", unknown=1)
    assert first["type"] == "observation"
    assert first["data"]["metadata"] == first["data"]["observation"]["metadata"] == {"fresh": True}
    assert first["data"]["reward"] is None
    second = await peer.step("hi")
    assert second["data"]["reward"] == 1
    assert "reward" not in second["data"]["observation"]
    assert "metadata" not in second["data"]
    assert (await peer.call({"type": "state"}))["data"] == {"episode_id": "ep-7", "step_count": 1, "seed": 7}
    assert (await peer.step("nan:"))["data"]["reward"] is None
    peer.send({"type": "close"})
    assert (await peer.closed()).code == 1000
    peer.raw(frames.CLOSE, frames.close_payload(1000))
    await until(lambda: server.sessions.active_sessions == 0)
    assert Recording.made[0].closed


async def test_errors_that_keep_the_session(peer: Peer) -> None:
    assert await peer.error("not json") == {
        "message": "Invalid JSON: Expecting value: line 1 column 1 (char 0)",
        "code": "INVALID_JSON",
    }
    assert await peer.error({"type": "bogus"}) == {"message": "Unknown message type: bogus", "code": "UNKNOWN_TYPE"}
    assert await peer.error({}) == {"message": "Unknown message type: ", "code": "UNKNOWN_TYPE"}
    assert (await peer.error({"type": "ping"}))["code"] == "UNKNOWN_TYPE"
    url = "https://errors.pydantic.dev"
    for message, kind, where in (
        ({"type": "step", "data": {"nope": 1}}, "extra_forbidden", ["nope"]),
        ({"type": "step"}, "missing", ["data"]),
        ({"type": "step", "data": [1]}, "dict_type", ["data"]),
        ({"type": "step", "data": {}, "x": 1}, "extra_forbidden", ["x"]),
        ({"type": "reset", "data": {}, "extra": 1}, "extra_forbidden", ["extra"]),
        ({"type": "state", "data": {}}, "extra_forbidden", ["data"]),
    ):
        error = await peer.error(message)
        assert (error["message"], error["code"]) == ("Invalid message", "VALIDATION_ERROR")
        assert error["errors"][0]["type"] == kind
        assert error["errors"][0]["loc"] == where
        assert error["errors"][0]["url"].startswith(url)
    assert await peer.error({"type": "step", "data": {"what": "raise:boom"}}) == {
        "message": "boom",
        "code": "EXECUTION_ERROR",
    }
    assert (await peer.error({"type": "step", "data": {"what": "object:"}}))["code"] == "SERIALIZATION_ERROR"
    assert (await peer.reset())["type"] == "observation"


async def test_an_observation_that_cannot_travel_names_its_field(peer: Peer) -> None:
    error = await peer.error({"type": "step", "data": {"what": "object:"}})
    assert error["message"] == "Field 'observation.extra.deep[0]' has no wire form: object."


@pytest.mark.parametrize(
    ("opcode", "payload", "text"),
    [
        (frames.TEXT, b"[1,2]", "'list' object has no attribute 'get'"),
        (frames.TEXT, b"3", "'int' object has no attribute 'get'"),
        (frames.BINARY, b"\x00", "'text'"),
    ],
)
async def test_errors_that_end_it(peer: Peer, opcode: int, payload: bytes, text: str) -> None:
    peer.raw(opcode, payload)
    assert await peer.recv() == {"type": "error", "data": {"message": text, "code": "SESSION_ERROR"}}
    assert (await peer.closed()).code == 1000


async def test_json_rpc_inside_the_session(peer: Peer) -> None:
    answer = await peer.call({"type": "mcp", "data": {"jsonrpc": "2.0", "method": "zzz", "id": 3}})
    assert answer == {
        "type": "mcp",
        "data": {
            "jsonrpc": "2.0",
            "id": 3,
            "error": {"code": -32601, "message": "Method not found: zzz", "data": None},
        },
    }


async def test_pipelined_messages_are_answered_in_order(peer: Peer) -> None:
    texts = [f"m{n}" for n in range(400)]
    for text in texts:
        peer.send({"type": "step", "data": {"what": text}})
    assert [(await peer.recv())["data"]["observation"]["text"] for _ in texts] == texts


async def test_fragments_and_pings_in_between(peer: Peer) -> None:
    whole = frames.encode_frame(frames.TEXT, json.dumps({"type": "reset"}).encode()[:8], mask=True)
    peer.writer.write(bytes((whole[0] & 0x7F,)) + whole[1:])
    peer.raw(frames.PING, b"now")
    assert await peer.frame() == (frames.PONG, b"now")
    peer.raw(frames.CONT, json.dumps({"type": "reset"}).encode()[8:])
    assert (await peer.recv())["type"] == "observation"


async def test_close_codes_are_echoed_and_broken_frames_refused(server: Running, peer: Peer) -> None:
    peer.raw(frames.CLOSE, frames.close_payload(3000, "bye"))
    assert (await peer.closed()).code == 3000
    other = await server.connect()
    other.writer.write(frames.encode_frame(frames.TEXT, b"{}", mask=False))
    assert (await other.closed()).code == 1002


@pytest.mark.parametrize("size", [900_000, 1_100_000, 16 << 20])
async def test_large_messages_pass(peer: Peer, size: int) -> None:
    """Up to the limit both directions work.

    Scenario: C16
    Mutation: announce and enforce a limit of 1 MiB in `limits.SERVER_MAX`
    """
    assert len((await peer.step("big:", size=size))["data"]["observation"]["text"]) == size
    answer = await peer.step("y" * size)
    assert len(answer["data"]["observation"]["text"]) == size


async def test_over_the_limit_names_it_and_the_session_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message over the limit, in either direction, is an error frame with size and setting; the episode goes on.

    Scenario: C16
    Mutation: construct the FrameReader without skip_oversize, or leave out the check in Dispatcher.encode
    """
    monkeypatch.setenv("OPENENV_MAX_MESSAGE_MB", "0.5")
    limit = 512 * 1024
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        assert f"openenv-max-message: {limit}\r\n" in peer.head
        await peer.reset(episode_id="kept")
        big: Any = {"type": "step", "data": {"what": "z" * limit}}
        for message in (big, {"type": "step", "data": {"what": "big:", "size": limit}}):
            error = await peer.error(message)
            assert error["code"] == "MESSAGE_TOO_LARGE"
            assert error["size"] > error["limit"] == limit
            assert error["setting"] == "OPENENV_MAX_MESSAGE_MB"
            assert f"{error['size']} bytes" in error["message"]
        assert (await peer.call({"type": "state"}))["data"]["episode_id"] == "kept"
        peer.send({"type": "step", "data": {"what": "z" * limit * 5}})
        closed = await peer.closed()
        assert closed.code == 1009
        assert f"exceeds limit of {limit} bytes" in closed.reason
