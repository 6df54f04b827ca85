"""Idle, silent and slow clients."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from openenv_sandbox.server import ConcurrencyConfig, create_app
from openenv_sandbox.server.connection import Connection
from openenv_sandbox.server.session import LARGE
from openenv_sandbox.wire import codec, frames
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw, Single
from tests.server.peers import serving, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def fresh() -> None:
    Recording.made.clear()


async def test_an_idle_session_is_closed_with_4408_and_frees_its_slot() -> None:
    config = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.2)
    async with serving(create_app(Single, Do, Saw, concurrency_config=config)) as server:
        peer = await server.connect()
        await peer.reset()
        closed = await peer.closed()
        assert closed.code == frames.IDLE
        assert closed.reason == "no message for 0.2 s"
        await until(lambda: server.sessions.active_sessions == 0)
        assert Recording.made[0].closed
        assert (await (await server.connect()).reset())["type"] == "observation"


async def test_a_step_longer_than_the_idle_time_is_not_idle() -> None:
    config = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.2)
    async with serving(create_app(Single, Do, Saw, concurrency_config=config)) as server:
        peer = await server.connect()
        assert (await peer.step("sleep:", seconds=0.6))["type"] == "observation"
        assert (await peer.closed()).code == frames.IDLE


async def test_a_detached_session_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv_sandbox.server.sessions.DETACHED_TIMEOUT", 0.1)
    async with serving(create_app(Single, Do, Saw)) as server:
        body = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1}
        assert (await server.request("POST", "/mcp", body))[0] == 200
        assert server.sessions.active_sessions == 1
        await until(lambda: server.sessions.active_sessions == 0)


async def test_a_client_that_thinks_for_long_keeps_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that answers no ping for six intervals, as a blocking one cannot, goes on where it was.

    Scaled: 20 s pings and 120 s of thinking become 50 ms and 300 ms.

    Scenario: C04
    Mutation: end the connection after one unanswered ping in TakenConnection._check
    """
    monkeypatch.setenv("OPENENV_WS_PING_INTERVAL", "0.05")
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset(episode_id="thought")
        pings = 0
        while pings < 6:
            assert await peer.frame() == (frames.PING, b"")
            pings += 1
        assert (await peer.call({"type": "state"}))["data"]["episode_id"] == "thought"


async def test_a_silent_client_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_WS_PING_INTERVAL", "0.02")
    monkeypatch.setenv("OPENENV_WS_PING_TIMEOUT", "0.2")
    async with serving(create_app(Single, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        await until(lambda: server.sessions.active_sessions == 0)
        assert Recording.made[0].closed


async def test_pongs_keep_a_client_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_WS_PING_INTERVAL", "0.05")
    monkeypatch.setenv("OPENENV_WS_PING_TIMEOUT", "0.5")
    async with serving(create_app(Single, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        for _ in range(20):
            assert await peer.frame() == (frames.PING, b"")
            peer.raw(frames.PONG, b"")
        assert (await peer.reset())["type"] == "observation"


@pytest.mark.parametrize("environment", [Recording, Inline, Asynchronous])
async def test_a_slow_reader_gets_every_reply_and_bounds_hold(environment: Any) -> None:
    """A thousand requests are sent before the first reply is read: each has its answer, in order, in bounded memory.

    Scenario: D08
    Mutation: let Connection._next go on while the socket is not writable
    """
    size, count = 50_000, 1000
    async with serving(create_app(environment, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        session = next(iter(server.sessions.sessions.values()))
        connection: Any = session.attached

        async def flood() -> None:
            for n in range(count):
                peer.send({"type": "step", "data": {"what": f"big:{n}", "size": size}})
                await peer.writer.drain()

        flooding = asyncio.create_task(flood())
        await until(lambda: not connection._writable)
        for _ in range(50):
            await asyncio.sleep(0)
        assert connection._transport.get_write_buffer_size() < 4 * size + 256 * 1024
        assert session.step_count < count
        received = 0
        for _ in range(count):
            answer = await peer.recv()
            assert len(answer["data"]["observation"]["text"]) == size
            received += 1
            assert len(connection._waiting) <= Connection.MAX_WAITING * 20
        await flooding
        assert received == session.step_count == count


async def test_a_paused_client_that_dies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_WS_PING_INTERVAL", "0.05")
    monkeypatch.setattr(Connection, "MAX_WAITING", 4)
    gate = Recording.gates["held"] = threading.Event()
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        for _ in range(50):
            peer.send({"type": "step", "data": {"what": "wait:held"}})
        await until(lambda: any(s.attached and s.attached._paused for s in server.sessions.sessions.values()))  # type: ignore[attr-defined]
        peer.writer.close()
        await until(lambda: server.sessions.active_sessions == 0)
        gate.set()
        await until(lambda: server.sessions.status().abandoned_steps == 0)


@pytest.mark.parametrize("environment", [Recording, Asynchronous])
async def test_many_sessions_with_large_observations(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While 64 sessions get 1 MB each, a small one is answered in between; large JSON is made off the loop.

    Scenario: D07
    Mutation: encode on the loop whatever the size in Session._respond_inline, or step on the loop
    """
    count, size, rounds = 64, 1_000_000, 3
    on_loop = []
    real = codec.dumps

    def watched(value: Any) -> bytes:
        data = real(value)
        if len(data) > LARGE:
            on_loop.append(threading.get_ident() == here)
        return data

    here = threading.get_ident()
    monkeypatch.setattr(codec, "dumps", watched)
    async with serving(create_app(environment, Do, Saw, max_concurrent_envs=count + 1)) as server:
        small = await server.connect()
        peers = [await server.connect() for _ in range(count)]

        async def large(peer: Any) -> int:
            total = 0
            for _ in range(rounds):
                total += len((await peer.step("big:", size=size))["data"]["observation"]["text"])
            return total

        work = [asyncio.create_task(large(peer)) for peer in peers]
        await small.step("between")
        assert not all(task.done() for task in work)
        assert [await task for task in work] == [rounds * size] * count
    assert len(on_loop) == rounds * count
    # An environment that runs inline does not know before its first large answer that its answers are large.
    assert sum(on_loop) == (0 if environment is Recording else count)
