"""The routes of the page, asked as programs ask them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from openenv_sandbox.models import CallToolAction, CallToolObservation, State
from openenv_sandbox.server import create_app
from openenv_sandbox.server.web.app import create_web_interface_app
from tests.server.environments import Do, Recording, Saw
from tests.server.peers import in_process, serving
from tests.web.people import PLAIN, Person, page, person
from tests.web.worlds import Canvas, Draw, Studio, Toolbox

pytestmark = pytest.mark.anyio

ACTION = {"place": {"x": 1}, "shape": {"kind": "circle", "radius": 2}}


@pytest.mark.parametrize("value", ["true", "1", "yes", "TRUE"])
async def test_the_page_is_on_where_the_variable_says_so(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", value)
    async with serving(create_app(Recording, Do, Saw)) as server:
        assert (await server.request("GET", "/web"))[0] == 200


@pytest.mark.parametrize("value", ["", "0", "false", "no"])
async def test_the_page_is_off_otherwise(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Mutation: let create_app serve the page whatever ENABLE_WEB_INTERFACE says"""
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", value)
    async with serving(create_app(Recording, Do, Saw)) as server:
        for path in ("/", "/web", "/web/metadata", "/web/static/main.js"):
            assert (await server.request("GET", path))[0] == 404
        assert (await server.connect("/ws/ui")).status == 403


async def test_root_leads_to_the_page_and_the_page_is_one_route() -> None:
    """Mutation: mount the page instead of adding a route"""
    app = page()
    found = [r for r in app.routes if getattr(r, "path", "") == "/web" and "GET" in getattr(r, "methods", ())]
    assert len(found) == 1
    async with serving(app) as server:
        status, headers, _ = await server.request("GET", "/")
        assert (status, headers["location"]) == (307, "/web")
        status, headers, _ = await server.request("GET", "/web/")
        assert status == 307
        assert headers["location"].endswith("/web")


async def test_an_environment_may_put_its_own_page_in_place_of_ours() -> None:
    app = page()
    for route in list(app.routes):
        if getattr(route, "path", None) == "/web" and "GET" in getattr(route, "methods", ()):
            app.routes.remove(route)

    @app.get("/web")
    async def own() -> dict[str, str]:
        return {"page": "mine"}

    async with serving(app) as server:
        status, headers, text = await server.request("GET", "/web")
        assert (status, text) == (200, '{"page":"mine"}')
        assert "content-security-policy" not in headers
        assert (await server.request("GET", "/"))[1]["location"] == "/web"
        status, _, text = await server.request("POST", "/web/reset")
        assert (status, json.loads(text)["observation"]["text"]) == (200, "ready")
        status, _, text = await server.request("POST", "/web/step", {"action": {"what": "hi"}})
        assert (status, json.loads(text)["reward"]) == (200, 1)
        assert json.loads((await server.request("GET", "/web/state"))[2])["step_count"] == 1
        assert json.loads((await server.request("GET", "/web/metadata"))[2])["name"] == "Recording"
        peer = await server.connect("/ws/ui", PLAIN)
        update = await peer.recv()
        assert update["type"] == "state_update"
        assert set(update["episode_state"]) == {
            "episode_id",
            "step_count",
            "current_observation",
            "action_logs",
            "is_reset",
        }
        peer.send("anything is ignored")
        await server.request("POST", "/web/step", {"action": {"what": "again"}})
        logs = (await peer.recv())["episode_state"]["action_logs"]
        assert [log["action"]["what"] for log in logs] == ["hi", "again"]
        assert logs[0]["observation"]["text"] == "hi"
        assert "metadata" not in logs[0]["action"]


async def test_our_responses_have_a_policy_and_others_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: send the policy from a middleware"""
    monkeypatch.delenv("SPACE_ID", raising=False)
    async with serving(page()) as server:
        for path in ("/web", "/web/static/main.js"):
            policy = (await server.request("GET", path))[1]["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'self'" in policy
            assert "unsafe" not in policy
        for path in ("/health", "/docs"):
            assert "content-security-policy" not in (await server.request("GET", path))[1]
        monkeypatch.setenv("SPACE_ID", "me/space")
        policy = (await server.request("GET", "/web"))[1]["content-security-policy"]
        assert "frame-ancestors 'self' https://huggingface.co" in policy
        assert (await server.request("GET", "/web/static/..%2fassets.py"))[0] == 404


async def test_what_is_wrong_with_an_action_is_told_with_its_place() -> None:
    async with serving(create_web_interface_app(Studio, Draw, Canvas)) as server:
        someone = await person(server)
        await someone.post("/web/reset")
        status, answer = await someone.post("/web/step", {"action": {"shape": {"kind": "circle", "radius": -1}}})
        assert status == 422
        assert [problem["loc"] for problem in answer["detail"]] == [["place"], ["shape", "circle", "radius"]]
        status, answer = await someone.post("/web/step", {"action": {**ACTION, "label": "boom"}})
        assert (status, answer["detail"]) == (500, "ValueError: the canvas is torn")
        assert (await someone.post("/web/step", {"action": ACTION}))[0] == 200
        assert (await someone.post("/web/step", b"{nonsense"))[0] == 422
        assert (await someone.post("/web/step", [1]))[0] == 422


@pytest.mark.parametrize("action", [[1], "x", 5])
async def test_an_action_that_is_no_object_is_the_callers_mistake(action: Any) -> None:
    """Mutation: take whatever comes for fields"""
    async with serving(page()) as server:
        someone = Person(server)
        await someone.arrive()
        await someone.post("/web/reset")
        status, answer = await someone.post("/web/step", {"action": action})
        assert (status, answer["code"]) == (422, "VALIDATION_ERROR")


async def test_an_episode_is_exported_line_by_line() -> None:
    async with serving(create_web_interface_app(Studio, Draw, Canvas)) as server:
        someone = await person(server)
        assert (await someone.get("/web/export"))[0] == 404
        await someone.post("/web/reset", {"seed": 7, "difficulty": "hard"})
        await someone.post("/web/step", {"action": ACTION})
        _, headers, text = await server.request("GET", "/web/export", headers=someone.headers)
        assert "attachment" in headers["content-disposition"]
        first, second = [json.loads(line) for line in text.splitlines()]
        assert first["arguments"] == {"seed": 7, "difficulty": "hard"}
        assert second["action"] == ACTION
        assert second["observation"]["echo"]["colour"] == "green"


async def test_html_of_the_environment_has_a_route_of_its_own_with_a_stricter_policy() -> None:
    """Mutation: serve the frame with page_headers()"""
    async with serving(create_web_interface_app(Studio, Draw, Canvas)) as server:
        someone = await person(server)
        tab = await someone.tab()
        await someone.post("/web/reset")
        while not (now := (await tab.recv()).get("now")):
            pass
        assert now["buttons"][0]["label"] == "A circle"
        status, headers, text = await server.request("GET", f"/web/frame/{now['frame']}", headers=someone.headers)
        assert status == 200
        assert "Step 0" in text
        assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert "script" not in headers["content-security-policy"]
        other = await person(server)
        assert (await server.request("GET", f"/web/frame/{now['frame']}", headers=other.headers))[0] == 404


async def test_a_hook_of_the_page_that_raises_does_not_fail_the_step() -> None:
    class Clumsy(Studio):
        def render_web(self, observation: dict[str, Any]) -> str | None:
            raise RuntimeError("no paint")

    async with serving(create_web_interface_app(Clumsy, Draw, Canvas)) as server:
        someone = await person(server)
        tab = await someone.tab()
        assert (await someone.post("/web/reset"))[0] == 200
        while not (now := (await tab.recv()).get("now")):
            pass
        assert now["troubles"] == ["render_web of the environment failed: RuntimeError: no paint"]


async def test_a_message_becomes_an_action() -> None:
    class Chatty(Recording):
        def message_to_action(self, message: Any) -> Do:
            return Do(what=message.upper())

    async with serving(page(Chatty)) as server:
        someone = await person(server)
        assert (await someone.post("/web/step", {"message": "hi"}))[0] == 409
        await someone.post("/web/reset")
        assert (await someone.post("/web/step", {"message": "hi"}))[1]["observation"]["text"] == "HI"
        raw = (await server.request("GET", "/web/export", headers=someone.headers))[2].splitlines()
        assert json.loads(raw[1])["action"] == {"what": "HI", "size": 0, "seconds": 0.0}
    async with serving(page()) as server:
        someone = await person(server)
        await someone.post("/web/reset")
        status, answer = await someone.post("/web/step", {"message": "hi"})
        assert (status, answer["detail"][0]["loc"]) == (422, ["message"])


async def test_half_a_character_does_not_stop_the_page() -> None:
    """Mutation: let the TypeError of orjson through"""

    class Torn(Studio):
        @property
        def state(self) -> State:
            return State(text="\ud83d")

    async with serving(create_web_interface_app(Torn, Draw, Canvas)) as server:
        someone = await person(server)
        tab = await someone.tab()
        await someone.post("/web/reset")
        while not (now := (await tab.recv()).get("now")):
            pass
        assert now["state"]["text"] == "\ud83d"


async def test_tools_are_offered_before_and_after_the_first_reset() -> None:
    app = create_web_interface_app(Toolbox, CallToolAction, CallToolObservation)
    async with serving(app) as server:
        someone = Person(server)
        tools = (await someone.arrive())["tools"]
        assert [tool["name"] for tool in tools] == ["add", "fail"]
        tab = await someone.tab()
        await someone.post("/web/reset")
        while not (now := (await tab.recv()).get("now")):
            pass
        assert [tool["name"] for tool in now["tools"]] == ["add", "fail"]
        call = {"type": "call_tool", "tool_name": "add", "arguments": '{"a": 1}'}
        assert (await someone.post("/web/step", {"action": call}))[1]["observation"]["result"]["data"] == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entered", [True, False])
def test_the_test_client_of_starlette(entered: bool) -> None:
    """Without being entered it has an event loop for each request.

    Mutation: wait for a future of another loop in Visitor._unless_closed
    """
    client = in_process(page())
    with client if entered else contextlib.nullcontext():
        assert client.get("/", follow_redirects=False).headers["location"] == "/web"
        assert "<html" in client.get("/web/").text
        assert client.post("/web/reset", json={"seed": 3}).json()["observation"]["text"] == "ready"
        with client.websocket_connect("/ws/ui") as socket:
            assert socket.receive_json()["episode_state"]["is_reset"] is True
            answer = client.post("/web/step", json={"action": {"what": "hi"}})
            assert answer.json()["reward"] == 1
            assert socket.receive_json()["episode_state"]["step_count"] == 1
        assert client.get("/web/state").json()["seed"] == 3
        assert client.post("/web/close").status_code == 204
