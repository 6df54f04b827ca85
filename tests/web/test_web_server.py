"""The routes of the page, asked as programs ask them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.models import CallToolAction, CallToolObservation
from openenv_sandbox.server import create_app
from openenv_sandbox.server.web import visitors
from openenv_sandbox.server.web.app import create_web_interface_app
from tests.server.environments import Do, Recording, Saw, Single
from tests.server.peers import serving, until
from tests.web.worlds import Canvas, Draw, Studio, Toolbox

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tests.server.peers import Peer, Running

pytestmark = pytest.mark.anyio

PLAIN = {"Sec-WebSocket-Extensions": "x-none"}
"""The client of these tests reads no compressed frames."""

ACTION = {"place": {"x": 1}, "shape": {"kind": "circle", "radius": 2}}


def page(env: Any = Recording, **options: Any) -> FastAPI:
    return create_web_interface_app(env, Do, Saw, **options)


class Person:
    """A browser without its screen: keeps the cookie."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.cookie = ""

    async def arrive(self) -> Any:
        status, headers, text = await self.server.request("POST", "/web/session", headers=self.headers)
        assert status == 200
        self.cookie = headers.get("set-cookie", self.cookie).partition(";")[0]
        return json.loads(text)

    @property
    def headers(self) -> dict[str, str]:
        return {"Host": "localhost", **({"Cookie": self.cookie} if self.cookie else {})}

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        status, _, text = await self.server.request("POST", path, body, self.headers)
        return status, json.loads(text) if text else None

    async def get(self, path: str) -> tuple[int, Any]:
        status, _, text = await self.server.request("GET", path, headers=self.headers)
        return status, json.loads(text)

    async def tab(self, query: str = "?live=1") -> Peer:
        return await self.server.connect(f"/ws/ui{query}", {**self.headers, **PLAIN})


async def person(server: Running) -> Person:
    someone = Person(server)
    await someone.arrive()
    return someone


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


async def test_the_page_builds_nothing_before_the_first_reset() -> None:
    """Mutation: open the session in post_session"""
    Recording.made.clear()
    async with serving(page()) as server:
        await server.request("GET", "/web")
        someone = await person(server)
        tab = await someone.tab()
        assert (await tab.recv())["now"] is None
        assert await someone.get("/web/state") == (
            409,
            {"detail": "There is no environment yet: reset first.", "code": "NOT_RESET"},
        )
        assert (await someone.post("/web/step", {"action": {"what": "x"}}))[0] == 409
        assert Recording.made == []
        assert server.sessions.active_sessions == 0
        await someone.post("/web/reset")
        assert server.sessions.active_sessions == 1
        assert len(Recording.made) == 1


async def test_two_visitors_have_environments_of_their_own() -> None:
    """Mutation: return SHARED from Door.visitor"""
    async with serving(page()) as server:
        one, two = await person(server), await person(server)
        assert one.cookie != two.cookie
        await one.post("/web/reset", {"seed": 1})
        await two.post("/web/reset", {"seed": 2})
        await one.post("/web/step", {"action": {"what": "x"}})
        assert (await one.get("/web/state"))[1]["step_count"] == 1
        assert (await two.get("/web/state"))[1] == {"episode_id": None, "step_count": 0, "seed": 2}
        assert server.sessions.active_sessions == 2


async def test_a_visitor_takes_a_slot_and_training_the_other_way_round() -> None:
    """Mutation: build the environment of a visitor with SessionManager.temporary"""
    async with serving(page(Single)) as server:
        someone, other = await person(server), await person(server)
        await someone.post("/web/reset")
        peer = await server.connect()
        assert (await peer.error({"type": "reset"}))["code"] == "CAPACITY_REACHED"
        status, answer = await other.post("/web/reset")
        assert (status, answer["code"], answer["max_sessions"]) == (503, "CAPACITY_REACHED", 1)
        assert "at capacity" in answer["detail"]
        assert (await someone.get("/web/state"))[0] == 200
        assert (await someone.post("/web/close"))[0] == 204
        await until(lambda: server.sessions.active_sessions == 0)
        training = await server.connect()
        await training.reset()
        assert (await someone.post("/web/reset"))[0] == 503


async def test_every_tab_of_a_visitor_sees_every_change_and_watchers_do() -> None:
    """Mutation: tell only the first of the viewers"""
    async with serving(page()) as server:
        someone = await person(server)
        watch = (await someone.arrive())["watch"]
        first, second = await someone.tab(), await someone.tab()
        stranger = Person(server)
        watcher = await stranger.tab(f"?live=1&watch={watch}")
        for peer, owner in ((first, True), (second, True), (watcher, False)):
            assert (await peer.recv())["owner"] is owner
        await someone.post("/web/reset")
        await someone.post("/web/step", {"action": {"what": "hello"}})
        for peer in (first, second, watcher):
            while "entry" not in (update := await peer.recv()):
                pass
            assert update["entry"]["action"] == {"what": "hello"}
            assert update["now"]["envelope"]["observation"]["text"] == "hello"
        assert (await stranger.get(f"/web/history/1?watch={watch}"))[1]["observation"]["text"] == "hello"
        assert (await stranger.get("/web/history/1"))[0] == 404
        # what a watcher does is done to himself
        await stranger.post(f"/web/step?watch={watch}", {"action": {"what": "evil"}})
        assert (await someone.get("/web/state"))[1]["step_count"] == 1
        unknown = await stranger.tab("?live=1&watch=unknown")
        assert unknown.status == 403


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


async def test_an_idle_visitor_loses_his_environment_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: never arm the timer"""
    monkeypatch.setenv("OPENENV_WEB_IDLE", "0.2")
    async with serving(page(Single)) as server:
        someone = await person(server)
        tab = await someone.tab()
        await someone.post("/web/reset")
        await until(lambda: server.sessions.active_sessions == 0)
        while not (note := (await tab.recv())["status"]["note"]):
            pass
        assert note == "The environment was closed after 0.2 s without an action. Reset starts anew."
        status, _, text = await server.request("GET", "/web/export", headers=someone.headers)
        assert (status, json.loads(text)["type"]) == (200, "reset")


async def test_the_environment_goes_soon_after_the_last_tab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "AWAY", 0.2)
    async with serving(page(Single)) as server:
        someone = await person(server)
        tab = await someone.tab()
        await tab.recv()
        await someone.post("/web/reset")
        tab.drop()
        await until(lambda: server.sessions.active_sessions == 0)


async def test_a_session_that_the_server_closes_is_told_to_the_tabs() -> None:
    from openenv_sandbox.server.types import ConcurrencyConfig

    app = page(Single, concurrency_config=ConcurrencyConfig(session_timeout=0.2))
    async with serving(app) as server:
        someone = await person(server)
        tab = await someone.tab()
        await someone.post("/web/reset")
        while "closed" not in str((await tab.recv())["status"]["note"]):
            pass
        assert (await someone.post("/web/step", {"action": {"what": "x"}}))[0] == 409
        assert (await someone.post("/web/reset"))[0] == 200


async def test_closing_the_environment_answers_a_step_that_hangs() -> None:
    """Mutation: await the work of a session without looking at whether the session has ended"""
    import asyncio
    import threading

    gate = Recording.gates["web"] = threading.Event()
    async with serving(page()) as server:
        someone = await person(server)
        await someone.post("/web/reset")
        step = asyncio.ensure_future(someone.post("/web/step", {"action": {"what": "wait:web"}}))
        await until(lambda: any(session.busy for session in server.sessions.sessions.values()))
        await someone.post("/web/close")
        assert (await step)[0] == 409
        gate.set()


async def test_a_slow_tab_is_sent_away_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors.Viewer, "QUEUED", 2)
    viewer = visitors.Viewer(live=True, owner=True)
    for number in range(3):
        viewer.push(b"%d" % number)
    assert viewer.queue.get_nowait() is None
    assert viewer.queue.empty()


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


async def test_the_server_ends_though_tabs_are_open() -> None:
    async with serving(page()) as server:
        someone = await person(server)
        tab = await someone.tab()
        await tab.recv()
        await someone.post("/web/reset")
    made = Recording.made[-1]
    assert made.closed
    assert (await tab.closed()).code in (1006, 1012)


def test_a_bad_idle_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_WEB_IDLE", "soon")
    with pytest.raises(ValueError, match="OPENENV_WEB_IDLE must be a positive number of seconds, not 'soon'"):
        page()


async def test_a_failing_factory_frees_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Recording:
        raise OSError("no disk")

    with caplog.at_level(logging.CRITICAL):
        async with serving(page(broken)) as server:
            someone = await person(server)
            status, answer = await someone.post("/web/reset")
            assert (status, answer["code"]) == (500, "FACTORY_ERROR")
            assert server.sessions.active_sessions == 0
