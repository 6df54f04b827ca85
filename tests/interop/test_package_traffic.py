"""Packages of the usual shapes, on the published server and on ours: the same frames and the same HTTP answers."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from websockets.sync.client import connect

from tests.adapters.served import PACKAGES, served
from tests.adapters.test_packages import LANTERN, ROLLS, drive
from tests.wire.normalise import plain

pytestmark = pytest.mark.interop

WAIT_S = 60.0
# Their subclass of the declared observation has a field of its own, which their client takes out.
ASHES = """
import sys
from openenv.core import GenericEnvClient
with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    assert "ashes" not in env.reset().observation
    env.step({"lit": True})
    assert env.step({"lit": True}).observation["ashes"] == 1
"""


def frame(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, **({"params": params} if params else {})}


FRAMES: dict[str, list[Any]] = {
    "lantern": [
        frame("reset"),
        frame("reset", seed=3, episode_id="mine", unknown=1),
        frame("step", lit=True),
        frame("state"),
        {"type": "state"},
        frame("step", lit=False, metadata={"a": 1}),
        frame("step", lit="perhaps"),
        frame("step"),
        frame("step", lit=True, odd=1),
        frame("nothing"),
        "no JSON",
        frame("mcp", **call("tools/list")),
        frame("step", lit=True),
        frame("state"),
    ],
    "notes": [
        frame("state"),
        frame("reset", author="ada", seed=7, episode_id="e"),
        frame("step", text="0123456789"),
        frame("step", text="no"),
        frame("step", text=3),
        frame("state"),
    ],
    "rolls": [
        frame("reset", episode_id="mine"),
        frame("step", type="list_tools"),
        frame("step", type="call_tool", tool_name="add", arguments={"a": 1}),
        frame("step", type="call_tool", tool_name="describe", arguments={"text": "ab"}),
        frame("step", type="call_tool", tool_name="nope", arguments={}),
        frame("step", type="call_tool"),
        frame("mcp", **call("tools/call", name="add", arguments={"a": 2, "b": 3})),
        frame("mcp", **call("no/such/method")),
        frame("state"),
    ],
}
HTTP: dict[str, list[tuple[str, str, Any]]] = {
    "lantern": [
        ("GET", "/health", None),
        ("GET", "/metadata", None),
        ("POST", "/reset", {"seed": 1}),
        ("POST", "/reset", {}),
        ("POST", "/step", {"action": {"lit": True}}),
        ("POST", "/step", {"action": {"lit": "perhaps"}}),
        ("POST", "/step", {}),
        ("GET", "/state", None),
        ("GET", "/no/such/route", None),
    ],
    "notes": [
        ("GET", "/metadata", None),
        ("GET", "/list_environments", None),
        ("GET", "/notes_env/splits", None),
        ("POST", "/notes_env/num_tasks", {"split": "train"}),
        ("POST", "/notes_env/task", {"split": "train", "index": 1}),
        ("POST", "/notes_env/num_tasks", {}),
    ],
    "rolls": [
        ("GET", "/metadata", None),
        ("POST", "/mcp", call("tools/list")),
        ("POST", "/mcp", call("tools/call", name="add", arguments={"a": 1})),
    ],
}


def over_websocket(url: str, frames: list[Any]) -> list[Any]:
    seen = []
    with connect(f"ws{url[4:]}/ws", proxy=None, compression=None) as socket:
        for one in frames:
            socket.send(one if isinstance(one, str) else json.dumps(one))
            seen.append(plain(json.loads(socket.recv(WAIT_S))))
    return seen


def over_http(url: str, requests: list[tuple[str, str, Any]]) -> list[Any]:
    seen = []
    for method, path, body in requests:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{url}{path}", data, {"content-type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=WAIT_S) as answer:
                status, text = answer.status, answer.read()
        except HTTPError as error:
            status, text = error.code, error.read()
        seen.append((method, path, status, plain(json.loads(text))))
    return seen


@pytest.mark.parametrize("package", list(FRAMES))
def test_frames_and_answers_are_equal(reference: str, package: str) -> None:
    """One frame after the other, each with its answer beside it.

    Mutation: leave metadata out of an observation
    """
    app = f"{package}_env.server.app:app"
    seen = []
    for python in (None, reference):
        with served(app, PACKAGES, *([python] if python else [])) as url:
            answers = over_websocket(url, FRAMES[package])
            seen.append((list(zip(FRAMES[package], answers, strict=True)), over_http(url, HTTP[package])))
    ours, theirs = seen
    if package == "rolls":  # the published server never says which mode it is in, so it hides the tools of that mode
        assert "peek" not in json.dumps(theirs)
        ours = _without_tool("peek", ours)
    if package == "lantern":  # it also drops what a subclass of the state adds, over HTTP alone
        state = next(answer for method, path, _, answer in ours[1] if path == "/state")
        assert state.pop("history") == []
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]


def _without_tool(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tool(name, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        kept = [item for item in value if not (isinstance(item, dict) and item.get("name") == name)]
        return type(value)(_without_tool(name, item) for item in kept)
    return value


@pytest.mark.parametrize(("package", "script"), [("lantern", LANTERN), ("rolls", ROLLS)])
def test_flat_imports_on_the_published_server(reference: str, package: str, script: str) -> None:
    """The folder itself on the path: ``server.app:app``, with the modules as top-level ones."""
    folder = PACKAGES / f"{package}_env"
    with served("server.app:app", folder, reference) as url:
        drive(script, url)


def test_a_subclass_of_the_observation_on_the_published_server(reference: str) -> None:
    with served("lantern_env.server.app:app", PACKAGES, reference) as url:
        drive(ASHES, url)


@pytest.mark.parametrize("published", [True, False])
def test_a_replaced_page(reference: str, published: bool) -> None:
    """``/web`` is the package's own on either server."""
    python = [reference] if published else []
    with served("notes_env.server.app:app", PACKAGES, *python, ENABLE_WEB_INTERFACE="true") as url:
        with urlopen(f"{url}/web", timeout=WAIT_S) as answer:
            assert answer.read().decode() == "<h1>notes: Takes notes</h1>"
