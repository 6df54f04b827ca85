"""Our echo server answers every recorded request as the published one did."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.wire import normalise
from tests.wire.serving import DEADLINE, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

ECHO = "echo_env.server.app:app"
# A message over the limit ends the session there; here it is answered by an error (test_a_big_message_is_answered).
IMPROVED = frozenset({"ws_big_17MB"})


class Replay:
    """Plays one recording against a server and collects the differences."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.http = httpx.Client(base_url=f"http://{address}", timeout=DEADLINE, trust_env=False)
        self.stack = ExitStack()
        self.sockets: dict[str, ClientConnection] = {}
        self.closed: set[str] = set()
        self.ids = normalise.Ids()
        self.differences: list[str] = []

    def close(self) -> None:
        self.http.close()
        self.stack.close()

    def play(self, record: dict[str, Any]) -> None:
        case, kind = record["case"], record.get("t")
        if "routes" in record:
            paths = self.http.get("/openapi.json").json()["paths"]
            self._compare(case, record["routes"], {path: sorted(methods) for path, methods in paths.items()})
        elif kind == "http":
            self._http(record)
        elif kind == "ws_open":
            self.sockets[case] = self._open(record["path"])
            self.closed.discard(case)
        elif kind == "ws_handshake_error":
            with pytest.raises(InvalidStatus) as refused:
                self._open("/nosuch" if case == "ws_wrong_path" else "/harness")
            self._compare(case, record["status"], refused.value.response.status_code)
        elif kind == "ws_closed":
            self.sockets[case].close()
            self._compare(case, (record["code"], record["reason"]), self._close_code(case))
        elif record.get("event") == "closed":
            if case not in self.closed:
                with pytest.raises(ConnectionClosed):
                    self.sockets[case].recv(timeout=DEADLINE)
                self.closed.add(case)
            self._compare(case, (record["rcvd_code"], record["reason"]), self._close_code(case))
        elif record["dir"] == "c2s":
            self._send(record)
        else:
            seen = json.loads(self.sockets[case].recv(timeout=DEADLINE))
            self._compare(case, record["frame"], normalise.without_additions(seen))

    def _open(self, path: str) -> ClientConnection:
        url = f"ws://{self.address}{self.ids.sent(path)}"
        return self.stack.enter_context(connect(url, proxy=None, max_size=None, open_timeout=DEADLINE))

    def _send(self, record: dict[str, Any]) -> None:
        frame = record["frame"]
        if isinstance(frame, dict) and "_binary" in frame:
            self.sockets[record["case"]].send(b"\0" * frame["_binary"])
        else:
            text = record.get("raw_text") or json.dumps(frame)
            self.sockets[record["case"]].send(self.ids.sent(text))

    def _http(self, record: dict[str, Any]) -> None:
        request = self.ids.sent(record["req"])
        content = request if isinstance(request, str) else None if request is None else json.dumps(request)
        headers = {} if content is None else {"content-type": "application/json"}
        seen = self.http.request(record["method"], record["path"], content=content, headers=headers)
        named = f"{record['case']} {record['method']} {record['path']} {content}"
        self._compare(named, record["status"], seen.status_code)
        kept = {key: seen.headers.get(key) for key in record["headers"]}
        self._compare(f"{named} headers", record["headers"], kept)
        if record["path"] not in normalise.FREE_BODIES:
            self._compare(named, record["body"], normalise.without_additions(seen.json()))

    def _close_code(self, case: str) -> tuple[int, str]:
        received = self.sockets[case].protocol.close_rcvd
        return (received.code, received.reason) if received else (1006, "")

    def _compare(self, where: str, recorded: Any, seen: Any) -> None:
        recorded, seen = normalise.plain(recorded), normalise.plain(seen)
        if isinstance(recorded, tuple):
            recorded, seen = list(recorded), list(seen)
        if not self.ids.same(recorded, seen):
            self.differences.append(f"{where}\n  recorded {json.dumps(recorded)}\n  seen     {json.dumps(seen)}")


@pytest.fixture(params=["sim", "production"])
def replayed(request: pytest.FixtureRequest) -> Iterator[tuple[Replay, list[dict[str, Any]]]]:
    mode = {"sim": "simulation"}.get(request.param, request.param)
    with serve(ECHO, MAX_CONCURRENT_ENVS="1", OPENENV_MODE=mode) as address:
        replay = Replay(address)
        yield replay, normalise.records(f"echo_env-0.10.0-{request.param}")
        replay.close()


def test_every_record_is_answered_as_recorded(replayed: tuple[Replay, list[dict[str, Any]]]) -> None:
    """All 147 records of both modes, in their order, over HTTP, /ws and /mcp.

    Mutation: answer a tool call with its bare value instead of the recorded dict
    """
    replay, recording = replayed
    assert len(recording) == 147
    for record in recording:
        if record["case"] not in IMPROVED:
            replay.play(record)
    assert not replay.differences, "\n".join(replay.differences)


def test_a_big_message_is_answered_instead_of_cutting_the_session() -> None:
    """Over 16 MiB the published server closes with 1009; ours names size, limit and setting and goes on.

    Mutation: close the connection on a message that is over the limit
    """
    with serve(ECHO, OPENENV_MAX_MESSAGE_MB="16") as address:
        with connect(f"ws://{address}/ws", proxy=None, open_timeout=DEADLINE) as socket:
            socket.send(json.dumps({"type": "step", "data": {"pad": "x" * 17_000_000}}))
            error = json.loads(socket.recv(timeout=DEADLINE))
            assert error["data"]["code"] == "MESSAGE_TOO_LARGE"
            assert str(16 * 1024 * 1024) in error["data"]["message"]
            assert "OPENENV_MAX_MESSAGE_MB" in error["data"]["message"]
            socket.send(json.dumps({"type": "state"}))
            assert json.loads(socket.recv(timeout=DEADLINE))["type"] == "state"


def test_the_normaliser_lets_nothing_else_pass() -> None:
    """A changed number, key, type or a second id for one session is a difference.

    Mutation: compare with == alone, so that 0 and 0.0 are equal
    """
    ids = normalise.Ids()
    one, two, three = (f"{n}" * 8 + "-aaaa-aaaa-aaaa-aaaaaaaaaaaa" for n in "123")
    assert ids.same({"id": one}, {"id": two})
    assert ids.same(f"session {one} gone", f"session {two} gone")
    assert not ids.same({"id": one}, {"id": three})
    assert not ids.same({"id": three}, {"id": two})
    assert not ids.same({"reward": 0.0}, {"reward": 0})
    assert not ids.same({"a": None}, {})
    assert not ids.same([1, 2], [2, 1])
    assert normalise.plain("https://errors.pydantic.dev/2.14/v/x") == normalise.plain(
        "https://errors.pydantic.dev/3.0/v/x"
    )
    with pytest.raises(AssertionError, match="greeting"):
        normalise.without_additions({"observation": {"metadata": {"message": normalise.GREETING}}, "reward": 0.0})
