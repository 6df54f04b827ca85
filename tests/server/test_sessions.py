"""Slots, threads and the end of sessions."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import FactoryError, ProtocolError
from openenv_sandbox.server import ConcurrencyConfig, ConcurrencyConfigurationError, create_app
from openenv_sandbox.server.dispatch import Dispatcher
from openenv_sandbox.server.sessions import SessionManager
from openenv_sandbox.server.slots import Slots
from openenv_sandbox.wire import frames
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw, Single
from tests.server.peers import serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def gates() -> Iterator[dict[str, threading.Event]]:
    Recording.made.clear()
    Recording.gates.clear()
    yield Recording.gates
    for gate in Recording.gates.values():
        gate.set()


def gate(name: str) -> threading.Event:
    return Recording.gates.setdefault(name, threading.Event())


def manager(factory: Callable[[], Any] = Recording, **config: Any) -> SessionManager:
    return SessionManager(factory, ConcurrencyConfig(**config), Dispatcher(Do, 1 << 20))


async def test_one_session_by_default_and_the_refusal_says_so() -> None:
    """Of eight clients one is served; each other hears how many there are.

    Scenario: D02
    Mutation: let Slots.reserve count without comparing with the capacity
    """
    async with serving(create_app(Single, Do, Saw)) as server:
        first = await server.connect()
        await first.reset()
        for _ in range(7):
            peer = await server.connect()
            assert await peer.recv() == {
                "type": "error",
                "data": {
                    "message": "Server at capacity: 1/1 sessions active. Cannot accept new connections.",
                    "code": "CAPACITY_REACHED",
                    "active_sessions": 1,
                    "max_sessions": 1,
                },
            }
            assert (await peer.closed()).code == 1000
        assert (await first.step("still"))["data"]["observation"]["text"] == "still"


async def test_sessions_are_apart_and_each_stays_in_its_thread() -> None:
    """Eight sessions have eight states and eight threads, from construction to close.

    Scenario: D02
    Mutation: close the environment on the event loop in Session.shut
    """
    async with serving(create_app(Recording, Do, Saw, max_concurrent_envs=8)) as server:
        peers = [await server.connect() for _ in range(8)]
        for n, peer in enumerate(peers):
            await peer.reset(episode_id=f"e{n}")
        for n, peer in enumerate(peers):
            for _ in range(n):
                await peer.step()
        states = [(await peer.call({"type": "state"}))["data"] for peer in peers]
        assert [(s["episode_id"], s["step_count"]) for s in states] == [(f"e{n}", n) for n in range(8)]
        for peer in peers:
            peer.raw(frames.CLOSE, b"")
        await until(lambda: server.sessions.active_sessions == 0)
    assert all(env.closed for env in Recording.made)
    assert [len(env.threads) for env in Recording.made] == [1] * 8
    assert len(set.union(*(env.threads for env in Recording.made))) == 8


async def test_environments_that_need_one_thread_share_it() -> None:
    """Scenario: D02
    Mutation: ignore REQUIRES_SINGLE_THREAD_EXECUTOR
    """

    class OneThread(Recording):
        REQUIRES_SINGLE_THREAD_EXECUTOR = True

    sessions = manager(OneThread, max_concurrent_envs=4)
    opened = [await sessions.open() for _ in range(4)]
    threads = {(await session.step(Do())).model_dump()["thread"] for session in opened}
    await sessions.aclose()
    assert len(threads) == 1
    assert set.union(*(env.threads for env in Recording.made)) == threads


async def test_the_cap_holds_and_failures_give_their_slots_back() -> None:
    """A hundred connections at once, every third construction fails: never more than ten, and no slot is lost.

    Scenario: D03
    Mutation: take the slot after the environment is built, or leave out seat.free() when the factory fails
    """
    lock = threading.Lock()
    alive, most, count = 0, 0, 0

    class Counted(Recording):
        def __init__(self) -> None:
            nonlocal alive, most, count
            with lock:
                count += 1
                number = count
                alive += 1
                most = max(most, alive)
            gate("build").wait(20)
            if number % 3 == 0:
                with lock:
                    alive -= 1
                raise RuntimeError("no luck")
            super().__init__()

        def close(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1
            super().close()

    gate("build")
    sessions = manager(Counted, max_concurrent_envs=10)
    tries = [asyncio.create_task(sessions.open()) for _ in range(100)]
    await until(lambda: sum(task.done() for task in tries) == 90 and count == 10)
    gate("build").set()
    results = await asyncio.gather(*tries, return_exceptions=True)
    made = [r for r in results if not isinstance(r, BaseException)]
    assert sum(isinstance(r, FactoryError) for r in results) == 3
    assert sessions.active_sessions == len(made) == 7
    for session in made:
        await session.close()
    assert (sessions.active_sessions, alive) == (0, 0)
    assert most == 10


async def test_a_failed_construction_is_told_without_internals(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Recording:
        raise OSError("/secret/path is missing")

    async with serving(create_app(broken, Do, Saw)) as server:
        for _ in range(3):
            peer = await server.connect()
            assert (await peer.recv())["data"] == {
                "message": "Environment factory 'broken' failed to create instance.",
                "code": "FACTORY_ERROR",
                "factory_name": "broken",
            }
            assert (await peer.closed()).code == 1000
    assert "/secret/path" in caplog.text


async def test_a_client_that_dies_in_mid_step_frees_its_slot_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is free while the step runs on; at most as many steps as there are slots may be left behind.

    Mutation: leave out seat.abandon() in SessionManager.end, or the bound in Slots.abandon
    """
    monkeypatch.setattr(Slots, "CLOSING_GRACE", 3600.0)
    async with serving(create_app(Single, Do, Saw)) as server:
        for name in ("one", "two"):
            gate(name)
        first = await server.connect()
        first.send({"type": "step", "data": {"what": "wait:one"}})
        await until(lambda: Recording.made and Recording.made[0]._state.step_count)
        first.drop()
        await until(lambda: server.sessions.status().abandoned_steps == 1)
        assert server.sessions.active_sessions == 0
        second = await server.connect()
        second.send({"type": "step", "data": {"what": "wait:two"}})
        await until(lambda: len(Recording.made) == 2 and Recording.made[1]._state.step_count)
        second.drop()
        await until(lambda: not server.sessions.sessions)
        third = await server.connect()
        refused = (await third.recv())["data"]
        assert refused["code"] == "CAPACITY_REACHED"
        assert refused["abandoned_steps"] == 1
        assert "1 abandoned steps whose clients are gone are still running" in refused["message"]
        assert not any(env.closed for env in Recording.made)
        gate("one").set()
        gate("two").set()
        await until(lambda: all(env.closed for env in Recording.made))
        assert [len(env.threads) for env in Recording.made] == [1, 1]
        await until(lambda: server.sessions.status().abandoned_steps + server.sessions.active_sessions == 0)
        assert (await (await server.connect()).reset())["type"] == "observation"


async def test_a_client_that_leaves_while_the_environment_is_built() -> None:
    class Slow(Single):
        def __init__(self) -> None:
            gate("build").wait(20)
            super().__init__()

    gate("build")
    async with serving(create_app(Slow, Do, Saw)) as server:
        peer = await server.connect()
        await until(lambda: server.sessions.active_sessions == 1)
        peer.drop()
        await until(lambda: server.sessions.active_sessions == 0)
        gate("build").set()
        await until(lambda: len(Recording.made) == 1 and Recording.made[0].closed)
        assert (await (await server.connect()).reset())["type"] == "observation"


async def test_pings_and_close_are_answered_during_a_long_step() -> None:
    async with serving(create_app(Recording, Do, Saw)) as server:
        gate("long")
        peer = await server.connect()
        peer.send({"type": "step", "data": {"what": "wait:long"}})
        await until(lambda: Recording.made and Recording.made[0]._state.step_count)
        peer.raw(frames.PING, b"there?")
        assert await peer.frame() == (frames.PONG, b"there?")
        peer.raw(frames.CLOSE, frames.close_payload(1001))
        assert (await peer.closed()).code == 1001
        await until(lambda: server.sessions.status().abandoned_steps == 1)


@pytest.mark.parametrize("what", ["loop:", "sleep:"])
async def test_a_step_may_block_or_run_a_loop_while_others_go_on(what: str) -> None:
    """A nested asyncio.run works in a step, and a blocked one holds up nobody.

    Scenario: D04
    Mutation: run the step in the thread of the event loop
    """
    async with serving(create_app(Recording, Do, Saw)) as server:
        gate("held")
        busy, other = await server.connect(), await server.connect()
        busy.send({"type": "step", "data": {"what": "wait:held"}})
        await until(lambda: Recording.made and any(env._state.step_count for env in Recording.made))
        for _ in range(20):
            assert (await other.reset())["type"] == "observation"
        answer = await other.step(what, seconds=0.05)
        assert answer["data"]["observation"]["text"] == ("nested" if what == "loop:" else what)
        gate("held").set()
        assert (await busy.recv())["data"]["observation"]["text"] == "wait:held"


async def test_an_exit_inside_a_step_ends_the_step_alone() -> None:
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        assert (await peer.error({"type": "step", "data": {"what": "exit:"}}))["message"] == "SystemExit: 3"
        assert (await peer.step("on"))["type"] == "observation"


async def test_asynchronous_steps_run_side_by_side_and_are_cancelled_with_their_client() -> None:
    async with serving(create_app(Asynchronous, Do, Saw)) as server:
        peer, other = await server.connect(), await server.connect()
        peer.send({"type": "step", "data": {"what": "asleep", "seconds": 3600}})
        assert (await other.step("quick"))["data"]["observation"]["thread"] == threading.get_ident()
        peer.drop()
        await until(lambda: server.sessions.active_sessions == 1)
        await until(lambda: sum(env.closed for env in Recording.made) == 1)
        assert server.sessions.status().abandoned_steps == 0


async def test_an_environment_that_never_blocks_steps_on_the_loop_and_is_built_off_it() -> None:
    session = await manager(Inline).open()
    assert (await session.step(Do())).model_dump()["thread"] == threading.get_ident()
    assert threading.get_ident() in Recording.made[0].threads
    assert len(Recording.made[0].threads) == 2
    await session.close()


async def test_connections_may_wait_in_a_queue() -> None:
    config = ConcurrencyConfig(max_concurrent_envs=1, max_queued=1, queue_timeout=10)
    async with serving(create_app(Single, Do, Saw, concurrency_config=config)) as server:
        first, second = await server.connect(), await server.connect()
        await first.reset()
        await until(lambda: server.sessions.status().queued == 1)
        third = await server.connect()
        assert (await third.recv())["data"]["code"] == "CAPACITY_REACHED"
        second.send({"type": "reset"})
        first.drop()
        assert (await second.recv())["type"] == "observation"
        assert server.sessions.active_sessions == 1


async def test_a_queue_that_takes_too_long_refuses() -> None:
    sessions = manager(max_concurrent_envs=1, max_queued=5, queue_timeout=0.05)
    held = await sessions.open()
    with pytest.raises(Exception, match="Server at capacity: 1/1"):
        await sessions.open()
    waiting = asyncio.create_task(sessions.open())
    await until(lambda: sessions.status().queued == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert sessions.status().queued == 0
    await held.close()
    assert sessions.active_sessions == 0


async def test_attach_outlives_the_socket_until_a_close_is_asked_for() -> None:
    async with serving(create_app(Single, Do, Saw)) as server:
        answer = await server.request("POST", "/mcp", {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1})
        session_id = json.loads(answer[2])["result"]["session_id"]
        info = server.sessions.info(session_id)
        assert info is not None
        assert not info.attached
        peer = await server.connect(f"/ws?session_id={session_id}")
        await peer.reset(episode_id="mine")
        other = await server.connect(f"/ws?session_id={session_id}")
        assert (await other.recv())["data"] == {
            "message": f"Session {session_id} already has an attached WebSocket",
            "code": "SESSION_ERROR",
        }
        unknown = await server.connect("/ws?session_id=nope")
        assert (await unknown.recv())["data"]["message"] == "Unknown session_id: nope"
        peer.drop()
        await until(lambda: server.sessions.get(session_id).attached is None)
        again = await server.connect(f"/ws?session_id={session_id}")
        assert (await again.call({"type": "state"}))["data"]["episode_id"] == "mine"
        assert await server.sessions.close_session(session_id) is False
        assert (await again.reset())["type"] == "observation"
        again.drop()
        await until(lambda: server.sessions.active_sessions == 0)
        assert Recording.made[0].closed


async def test_a_close_never_hits_the_socket_that_came_after() -> None:
    """Leaving, closing and attaching in every order: an attached session is alive, or the attach was refused.

    Scenario: D06
    Mutation: let SessionManager.leave go on though another socket is attached
    """
    import random

    class Socket:
        def close(self, code: int, reason: str) -> None:
            """Part of what a session knows about its socket."""

    for seed in range(1000):
        order = random.Random(seed)
        sessions = manager(Inline)
        session = await sessions.open()
        old, new = Socket(), Socket()
        sessions.attach(session.id, old)
        attached = False
        steps = ["leave", "close", "attach", "leave"]  # a socket may be reported gone twice
        order.shuffle(steps)
        closing: list[asyncio.Task[bool]] = []
        for step in steps:
            if step == "leave":
                sessions.leave(session, old)
            elif step == "close":
                closing.append(asyncio.ensure_future(sessions.close_session(session.id)))
                if order.random() < 0.5:
                    await asyncio.sleep(0)
            else:
                try:
                    sessions.attach(session.id, new)
                    attached = True
                except ProtocolError:
                    attached = False
        results = await asyncio.gather(*closing, return_exceptions=True)
        if attached:
            assert session.closed is None
            assert session.attached is new
            assert results in ([False], [])
        elif results == [True]:
            assert session.id not in sessions.sessions
        session.cancel()
        await session.close()


def test_a_class_must_declare_concurrency() -> None:
    with pytest.raises(ConcurrencyConfigurationError, match="SUPPORTS_CONCURRENT_SESSIONS"):
        create_app(Single, Do, Saw, max_concurrent_envs=2)


async def test_a_factory_is_held_to_it_at_the_first_session() -> None:
    async with serving(create_app(lambda: Single(), Do, Saw, max_concurrent_envs=2)) as server:
        assert "SUPPORTS_CONCURRENT_SESSIONS" in (await (await server.connect()).recv())["data"]["message"]
        await until(lambda: server.sessions.active_sessions == 0)
