"""The recorded edge cases of an ordinary environment: equal where a contract, better where they were faults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.wire import normalise
from tests.wire.serving import DEADLINE, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
RECORDED = {record["case"]: record["r"] for record in normalise.records("mini-edge-0.10.0")}
OK, RAISE, NAN = {"kind": "ok"}, {"kind": "raise"}, {"kind": "nan"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve("edge_env:app", cwd=HERE) as where:
        yield where


@pytest.fixture
def socket(address: str) -> Iterator[ClientConnection]:
    with connect(f"ws://{address}/ws", proxy=None, max_size=None, open_timeout=DEADLINE) as opened:
        yield opened


def ask(socket: ClientConnection, message: Any) -> Any:
    socket.send(json.dumps(message))
    return without_thread(json.loads(socket.recv(timeout=DEADLINE)))


def without_thread(value: Any) -> Any:
    """The name of a thread is nobody's contract."""
    return json.loads(re.sub(r"thread=[\w-]+", "thread=*", json.dumps(normalise.plain(value))))


def step(action: dict[str, Any]) -> dict[str, Any]:
    return {"type": "step", "data": action}


def test_http(address: str) -> None:
    """A step, one that raises, a NaN reward, a body that is a list, and a state that no step has changed.

    Mutation: answer an exception in POST /step with its text
    """
    # uvicorn closes the connection behind a 500 of an unhandled exception: none is used twice.
    once = {"connection": "close"}
    with httpx.Client(base_url=f"http://{address}", timeout=DEADLINE, trust_env=False, headers=once) as http:
        for case, action in (("http_step_ok", OK), ("http_step_raise", RAISE), ("http_step_nan", NAN)):
            seen = http.post("/step", json={"action": action})
            status, kind, body = RECORDED[case]
            assert (seen.status_code, seen.headers["content-type"]) == (status, kind)
            if kind == "application/json":
                assert without_thread(seen.json()) == without_thread(json.loads(body))
                assert [type(seen.json()["reward"])] == [type(json.loads(body)["reward"])]
            else:
                assert seen.text == body
        refused = http.post("/reset", json=[])
        assert [refused.status_code, refused.text] == RECORDED["http_reset_list"]
        assert http.get("/state").json() == RECORDED["http_state_after_steps"]


def test_websocket(socket: ClientConnection) -> None:
    """The same over /ws, where an int reward stays an int, and unknown keys are refused.

    Mutation: drop timeout_s from a step instead of refusing it
    """
    ok = ask(socket, step(OK))
    assert ok == without_thread(RECORDED["ws_step_ok"])
    assert type(ok["data"]["reward"]) is int
    assert ask(socket, step(RAISE)) == RECORDED["ws_step_raise"]
    assert ask(socket, step(NAN)) == RECORDED["ws_step_nan"]
    refused = ask(socket, step({"timeout_s": 3}))
    assert refused == normalise.plain(RECORDED["ws_step_timeout_kw"])
    assert ask(socket, {"type": "state"}) == RECORDED["ws_state"]
    assert ask(socket, {"type": "state", "data": {}}) == normalise.plain(RECORDED["ws_state_extra_data"])


def test_a_big_observation_arrives(socket: ClientConnection) -> None:
    """20 MB in one frame, as recorded.

    Mutation: apply the limit of 16 MiB to what the server sends
    """
    kind, size, _ = RECORDED["ws_big_obs_20MB"]
    socket.send(json.dumps(step({"kind": "big", "size": 20_000_000})))
    frame = socket.recv(timeout=DEADLINE)
    assert json.loads(frame)["type"] == kind
    assert abs(len(frame) - size) < 100


def test_requests_are_answered_in_order(socket: ClientConnection) -> None:
    """A state asked for during a step is answered after it.

    Mutation: answer a state at once while a step runs
    """
    socket.send(json.dumps(step({"kind": "ok", "seconds": 0.2})))
    socket.send(json.dumps({"type": "state"}))
    first, second = (json.loads(socket.recv(timeout=DEADLINE)) for _ in range(2))
    assert [first["type"], second["type"]] == RECORDED["ws_serial"][::2]


def test_health_does_not_wait_for_a_slow_factory() -> None:
    """Recorded as a fault: /health took as long as three factories. Here it is answered while they still run.

    Mutation: build the environment of GET /metadata on the event loop
    """
    assert RECORDED["health_during_3_metadata_with_2s_factory_s"] > 5
    with (
        serve("edge_env:app", cwd=HERE, EDGE_FACTORY_SECONDS="3") as address,
        httpx.Client(base_url=f"http://{address}", timeout=DEADLINE, trust_env=False) as http,
    ):
        http.get("/health")
        with connect(f"ws://{address}/ws", proxy=None, open_timeout=DEADLINE) as socket:
            socket.send(json.dumps({"type": "reset", "data": {}}))
            assert http.get("/health").json() == {"status": "healthy"}
            with pytest.raises(TimeoutError):
                socket.recv(timeout=0)
            assert json.loads(socket.recv(timeout=DEADLINE))["type"] == "observation"


def test_an_idle_session_is_closed_and_not_left_on_a_closed_environment() -> None:
    """Recorded as a fault: the socket stayed open and later steps ran on the closed environment. Here: close 4408.

    Mutation: close the environment of an idle session and leave its socket open
    """
    assert "closed=True" in RECORDED["reap_after"]["data"]["observation"]["v"]
    with serve("edge_env:app", cwd=HERE, EDGE_SESSION_TIMEOUT="0.5") as address:
        with connect(f"ws://{address}/ws", proxy=None, open_timeout=DEADLINE) as socket:
            assert ask(socket, step(OK)) == without_thread(RECORDED["reap_before"])
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=DEADLINE)
            assert socket.close_code == 4408


def test_a_slot_is_free_at_once_when_its_client_is_gone() -> None:
    """Recorded as a fault: 5.3 s until the end of the abandoned step. Here the next client is served during it.

    Mutation: free the slot when the step returns
    """
    assert RECORDED["slot_freed_after_abrupt_disconnect_midstep_s"] > 5
    with serve("edge_env:app", cwd=HERE) as address:
        with connect(f"ws://{address}/ws", proxy=None, open_timeout=DEADLINE) as first:
            ask(first, step(OK))
            first.send(json.dumps(step({"kind": "ok", "seconds": 600})))
            first.socket.shutdown(2)
        for _ in range(50):  # the server has to see the end of the connection first
            with connect(f"ws://{address}/ws", proxy=None, open_timeout=DEADLINE) as second:
                answer = ask(second, step(OK))
            if answer["type"] == "observation":
                break
        assert answer == without_thread(RECORDED["ws_step_ok"])
