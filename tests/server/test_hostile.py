"""Environments, factories and clients that do what nobody should: one session has the damage, the server none."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import FactoryError
from openenv_sandbox.models import Action
from openenv_sandbox.server import create_app
from openenv_sandbox.server.app import HTTPEnvServer
from openenv_sandbox.server.dispatch import Dispatcher, failure
from openenv_sandbox.wire import codec, frames
from openenv_sandbox.wire.limits import MIB
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw
from tests.server.peers import serving, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.server.sessions import SessionManager

pytestmark = pytest.mark.anyio


def manager(env: Callable[[], Any]) -> SessionManager:
    return HTTPEnvServer(env, Do, Saw).sessions


class Nasty(Asynchronous):
    """Leaves by every way but an answer, on the event loop."""

    async def step_async(self, action: Do, timeout_s: float | None = None, **kwargs: Any) -> Saw:
        match action.what:
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancelled":
                inner = asyncio.ensure_future(asyncio.sleep(60))
                inner.cancel()
                await inner
        return Saw(text=action.what)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        raise SystemExit(4)


@pytest.mark.parametrize(
    ("what", "message"),
    [("exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt"), ("cancelled", "CancelledError")],
)
async def test_what_leaves_a_step_on_the_loop_ends_that_step_alone(what: str, message: str) -> None:
    """An exit neither ends the event loop and with it everybody's session, nor does a step that was cancelled from
    inside leave its client without an answer. Closing may exit as well.

    Mutation: await the call without `worker.settle`, or return from Session._inline_done where the task is cancelled
    """
    async with serving(create_app(Nasty, Do, Saw)) as server:
        first, second = await server.connect(), await server.connect()
        assert (await first.error({"type": "step", "data": {"what": what}}))["message"] == message
        assert (await first.step("on"))["data"]["observation"]["text"] == "on"
        assert (await server.request("POST", "/step", {"action": {"what": what}}))[0] == 500
        first.drop()
        await until(lambda: server.sessions.active_sessions == 1)
        assert (await second.step("hi"))["type"] == "observation"


async def test_a_tool_that_is_cancelled_from_inside_is_answered() -> None:
    """Mutation: catch Exception alone in Connection._answer_rpc"""

    class Tools(Nasty):
        def tool_listing(self) -> list[dict[str, Any]]:
            return []

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any: ...

        async def call_tool_async(self, name: str, arguments: dict[str, Any]) -> Any:
            await self.step_async(Do(what=name))

    async with serving(create_app(Tools, Do, Saw)) as server:
        peer = await server.connect()
        for name, code in (("cancelled", "EXECUTION_ERROR"), ("exit", None)):
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}
            answer = await peer.call({"type": "mcp", "data": request})
            assert answer["data"].get("code") == code
            assert (await peer.step("on"))["type"] == "observation"


@pytest.mark.parametrize("environment", [Recording, Inline, Asynchronous])
async def test_an_error_that_cannot_be_told_is_told_by_its_class(environment: Any) -> None:
    """Mutation: call str(error) in dispatch.failure without a net"""

    class Mute(Exception):
        def __str__(self) -> str:
            raise Mute

    class Muttering(environment):  # type: ignore[misc]
        def step(self, action: Do) -> Saw:
            raise Mute

    async with serving(create_app(Muttering, Do, Saw)) as server:
        peer = await server.connect()
        assert (await peer.error({"type": "step", "data": {}}))["message"] == "Mute"
        assert (await peer.reset())["type"] == "observation"


@pytest.mark.parametrize("environment", [Recording, Inline, Asynchronous])
async def test_json_of_a_hundred_thousand_levels_is_invalid_json(environment: Any) -> None:
    """Mutation: let codec.loads raise RecursionError"""
    async with serving(create_app(environment, Do, Saw)) as server:
        peer = await server.connect()
        assert (await peer.error("[" * 100_000))["code"] == "INVALID_JSON"
        assert (await peer.reset())["type"] == "observation"
        status, _, text = await server.request("POST", "/mcp", b"[" * 100_000)
        assert (status, codec.loads(text)["error"]["code"]) == (200, -32700)


def test_error_frames_keep_the_limit() -> None:
    """Ten missing fields quote a message of a megabyte ten times; an exception may have any text.

    Mutation: quote whatever the size, or send error frames unmeasured
    """

    class Wide(Action):
        a: int
        b: int
        c: int

    dispatcher = Dispatcher(Wide, MIB)
    _, value = dispatcher.decode(codec.dumps({"type": "step", "data": {"x": "y" * (MIB // 2)}}))
    assert [error["loc"] for error in value["data"]["errors"]] == [["a"], ["b"], ["c"], ["x"]]
    assert len(dispatcher.error(value)) < 2000
    raw = dispatcher.error(failure(ValueError("n" * 2 * MIB)))
    assert len(raw) < 2000
    assert codec.loads(raw)["data"]["code"] == "EXECUTION_ERROR"


@pytest.mark.parametrize("product", [None, 7])
async def test_a_factory_that_makes_something_else_for_a_client_that_left(product: Any) -> None:
    """Mutation: build a Session from whatever came, without a net, in SessionManager._put_away"""
    gate = threading.Event()

    def factory() -> Any:
        gate.wait(20)
        return product

    sessions = manager(factory)
    opening = asyncio.create_task(sessions.open())
    await until(lambda: sessions.active_sessions == 1)
    opening.cancel()
    await until(lambda: sessions.status().abandoned_steps == 1)
    gate.set()
    await until(lambda: sessions.status().abandoned_steps == 0)
    assert sessions.active_sessions == 0


async def test_an_asynchronous_factory_whose_client_left_gives_its_slot_back() -> None:
    """Mutation: take the coroutine of the factory for the environment when the client leaves"""
    begun, ready = asyncio.Event(), asyncio.Event()

    async def make() -> Recording:
        begun.set()
        await ready.wait()
        return Recording()

    sessions = manager(make)
    opening = asyncio.create_task(sessions.open())
    await begun.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert sessions.active_sessions == 0
    ready.set()
    session = await sessions.open()
    assert isinstance(session.env, Recording)
    await session.close()


async def test_a_factory_that_exits_on_the_loop_fails_as_any_other() -> None:
    async def leaves() -> Any:
        raise SystemExit(5)

    sessions = manager(leaves)
    with pytest.raises(FactoryError):
        await sessions.open()
    assert sessions.active_sessions == 0


async def test_a_system_without_threads_costs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot be started fails that session; the next one, and a shared thread, try again.

    Mutation: submit the factory before the try in SessionManager._build, or keep the thread before it has started
    """

    class OneThread(Recording):
        REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for environment in (Recording, OneThread):
        sessions = manager(environment)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(FactoryError):
                await sessions.open()
        assert sessions.active_sessions == 0
        session = await sessions.open()
        await session.close()


async def test_pings_of_a_client_that_does_not_read_are_not_hoarded() -> None:
    """Mutation: answer every ping at once, whatever the transport still holds"""
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        (session,) = server.sessions.sessions.values()
        transport = session.attached._transport  # type: ignore[union-attr]
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send({"type": "step", "data": {"what": "big:", "size": 16 * MIB}})
        await until(lambda: transport.get_write_buffer_size() > MIB)
        held = transport.get_write_buffer_size()
        for number in range(1000):
            peer.raw(frames.PING, b"%0125d" % number)
        peer.raw(frames.PING, b"last")
        await until(lambda: session.attached._pong_due == b"last")  # type: ignore[union-attr]
        assert transport.get_write_buffer_size() <= held
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await peer.recv())["type"] == "observation"
        assert await peer.frame() == (frames.PONG, b"last")


async def test_a_client_that_resets_while_reading_is_paused_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer that cannot be sent ends the session: while more messages wait than are taken, nothing is read,
    and a slot would be held until the next keepalive.

    Mutation: leave the end of the connection to the reading loop in DirectSending._send_direct
    """
    monkeypatch.setenv("OPENENV_WS_PING_INTERVAL", "3600")
    held = Recording.gates["reset"] = threading.Event()
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        (session,) = server.sessions.sessions.values()
        connection: Any = session.attached
        peer.send({"type": "step", "data": {"what": "wait:reset"}})
        for _ in range(connection.MAX_WAITING + 50):
            peer.send({"type": "step", "data": {}})
        await until(lambda: connection._paused)
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.drop()
        await until(lambda: peer.writer.transport.get_extra_info("socket").fileno() < 0)
        held.set()
        await until(lambda: server.sessions.active_sessions == 0)
