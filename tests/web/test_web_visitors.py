"""Whose environment it is, who sees it, and when it goes."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from openenv_sandbox.server.web import episode, visitors
from openenv_sandbox.server.web.viewer import Viewer
from tests.server.environments import Recording, Single
from tests.server.peers import serving, until
from tests.web.people import Person, page, person

pytestmark = pytest.mark.anyio

ACTION = {"place": {"x": 1}, "shape": {"kind": "circle", "radius": 2}}


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
    monkeypatch.setattr(Viewer, "QUEUED", 2)
    viewer = Viewer(live=True, owner=True)
    for number in range(3):
        viewer.push(b"%d" % number)
    assert viewer.queue.get_nowait() is None
    assert viewer.queue.empty()


async def test_nobody_is_remembered_without_a_tab_or_an_environment() -> None:
    """Mutation: make a Visitor for everybody who asks for his session"""
    app = page(Single)
    routes: list[Any] = list(app.routes)
    known = next(r.endpoint.__self__ for r in routes if getattr(r, "path", "") == "/web").visitors._known
    async with serving(app) as server:
        someone = await person(server)
        await someone.post("/web/step", {"action": {"what": "x"}})
        await someone.get("/web/state")
        await someone.get("/web/history/0")
        await server.connect("/ws/ui?live=1", {**someone.headers, "Host": "evil.example"})
        assert known == {}
        tab = await someone.tab()
        await tab.recv()
        await someone.post("/web/reset")
        assert len(known) == 1
        other = await person(server)
        assert (await other.post("/web/reset"))[0] == 503
        assert len(known) == 1
        await someone.post("/web/close")
        tab.drop()
        await until(lambda: known == {})


async def test_old_observations_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is there however large it is; of steps before it action and reward are.

    Mutation: keep all of them
    """
    monkeypatch.setattr(episode, "MAX_OBSERVATION_BYTES", 10)
    async with serving(page()) as server:
        someone = await person(server)
        await someone.post("/web/reset")
        for what in ("one", "two"):
            await someone.post("/web/step", {"action": {"what": what}})
        assert [(await someone.get(f"/web/history/{number}"))[0] for number in range(3)] == [404, 404, 200]
        lines = (await server.request("GET", "/web/export", headers=someone.headers))[2].splitlines()
        assert [json.loads(line).get("action") for line in lines] == [None, {"what": "one"}, {"what": "two"}]


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
