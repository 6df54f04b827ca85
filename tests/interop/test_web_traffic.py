"""What pages get from ``/web/*`` and ``/ws/ui``: the same from both servers, for packages that are not changed."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from websockets.sync.client import connect

from tests.adapters.served import PACKAGES, served

pytestmark = pytest.mark.interop

WEB = {"ENABLE_WEB_INTERFACE": "true"}
LANTERN = [
    ("reset", {"unknown": 1}),
    ("step", {"action": {"lit": True}}),
    ("step", {"action": {"lit": False, "metadata": {"a": 1}}}),
    ("state", None),
    ("reset", None),
    ("step", {"action": {"lit": True}}),
]
ROLLS = [
    ("reset", {"episode_id": "mine"}),
    ("step", {"action": {"type": "call_tool", "tool_name": "describe", "arguments": '{"text": "ab"}'}}),
    ("state", None),
]


def ask(base: str, path: str, body: Any = None, *, post: bool = True) -> tuple[int, Any]:
    data = json.dumps(body).encode() if body is not None else b"" if post else None
    request = Request(f"{base}{path}", data=data, headers={"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, None


def traffic(base: str, script: list[tuple[str, Any]]) -> list[Any]:
    """The answers, and what was pushed after each of them; only the time of a step is taken out."""
    metadata = ask(base, "/web/metadata", post=False)
    seen: list[Any] = [metadata]
    with connect(f"ws{base[4:]}/ws/ui", proxy=None, compression=None) as socket:
        first = json.loads(socket.recv(60))
        assert first["type"] == "state_update"
        for what, body in script:
            seen.append(ask(base, f"/web/{what}", body, post=what != "state"))
            if what != "state":
                update = json.loads(socket.recv(60))
                for log in update["episode_state"]["action_logs"]:
                    assert log.pop("timestamp")
                seen.append(update)
    return seen


@pytest.mark.parametrize(
    ("app", "script"),
    [("lantern_env.server.app:app", LANTERN), ("rolls_env.server.app:app", ROLLS)],
    ids=["lantern", "rolls"],
)
def test_a_page_gets_the_same_from_both_servers(reference: str, app: str, script: list[tuple[str, Any]]) -> None:
    """Mutation: push observations with reward and done in them"""
    with served(app, PACKAGES, **WEB) as url:
        ours = traffic(url, script)
    with served(app, PACKAGES, reference, **WEB) as url:
        theirs = traffic(url, script)
    assert ours == theirs
