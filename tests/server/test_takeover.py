"""Whichever server carries the socket, the conversation is the same; nothing around the endpoint is skipped."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import socket
import ssl
import subprocess
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.server import create_app, takeover
from openenv_sandbox.wire import frames
from tests.server.environments import Do, Inline, Recording, Saw
from tests.server.peers import Running, in_process, serving, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whether each connection so far was taken over."""
    seen: list[Any] = []
    real = takeover.carrier

    def spy(receive: Any, send: Any) -> Any:
        found = real(receive, send)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(takeover, "carrier", spy)
    return seen


async def converse(server: Running) -> None:
    peer = await server.connect()
    assert peer.status == 101
    assert "openenv-max-message: 67108864" in peer.head.lower()
    assert "permessage-deflate" not in peer.head.lower()
    assert (await peer.reset(episode_id="e"))["data"]["metadata"] == {"fresh": True}
    assert (await peer.step("hi"))["data"]["reward"] == 1
    assert (await peer.error("not json"))["code"] == "INVALID_JSON"
    assert (await peer.error({"type": "step", "data": {"what": "raise:x"}}))["message"] == "x"
    peer.send({"type": "close"})
    assert (await peer.closed()).code == 1000
    peer.drop()
    await until(lambda: server.sessions.active_sessions == 0)


async def test_plain_uvicorn_is_taken_over(taken: list[bool]) -> None:
    async with serving(create_app(Recording, Do, Saw)) as server:
        await converse(server)
    assert taken == [True]


@pytest.mark.parametrize("implementation", ["wsproto", "websockets"])
async def test_other_websocket_implementations_are_not(taken: list[bool], implementation: str) -> None:
    pytest.importorskip(implementation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = create_app(Recording, Do, Saw)
        async with serving(app, ws=implementation, ws_per_message_deflate=False) as server:
            await converse(server)
    assert taken == [False]


@pytest.mark.parametrize("environment", [Recording, Inline])
def test_the_test_client(taken: list[bool], environment: Any) -> None:
    client = in_process(create_app(environment, Do, Saw))
    with client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset"})
        assert ws.receive_json()["data"]["metadata"] == {"fresh": True}
        for n in range(50):
            ws.send_json({"type": "step", "data": {"what": str(n)}})
        assert [ws.receive_json()["data"]["observation"]["text"] for _ in range(50)] == [str(n) for n in range(50)]
        ws.send_bytes(b"x")
        assert ws.receive_json()["data"] == {"message": "'text'", "code": "SESSION_ERROR"}
        assert ws.receive()["code"] == 1000
    assert taken == [False]
    with client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "close"})
        assert ws.receive()["code"] == 1000


async def test_a_middleware_that_only_looks_on_sees_the_connection(taken: list[bool]) -> None:
    seen = []
    app = create_app(Recording, Do, Saw)

    class Look:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append((scope["type"], scope.get("path")))
            await self.app(scope, receive, send)

    app.add_middleware(Look)
    async with serving(app) as server:
        await converse(server)
    assert ("websocket", "/ws") in seen
    assert taken == [True]


@pytest.mark.parametrize("both", [True, False])
async def test_a_middleware_that_wraps_send_and_receive_sees_every_message(taken: list[bool], both: bool) -> None:
    """Mutation: look through wrappers of any module in takeover._unwrapped"""
    sent: list[str] = []
    received: list[str] = []
    app = create_app(Recording, Do, Saw)

    class Count:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def count(message: Any) -> None:
                sent.append(message["type"])
                await send(message)

            async def count_in() -> Any:
                message = await receive()
                received.append(message["type"])
                return message

            await self.app(scope, count_in if both and scope["type"] == "websocket" else receive, count)

    app.add_middleware(Count)
    async with serving(app, ws_per_message_deflate=False) as server:
        await converse(server)
    assert taken == [False]
    assert sent.count("websocket.send") == 4
    assert received.count("websocket.receive") == (5 if both else 0)


async def test_a_middleware_may_refuse_the_upgrade() -> None:
    app = create_app(Recording, Do, Saw)

    class Refuse:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "websocket":
                await self.app(scope, receive, send)
                return
            await send({"type": "websocket.close", "code": 1008})

    app.add_middleware(Refuse)
    async with serving(app) as server:
        assert (await server.connect()).status == 403
        assert server.sessions.active_sessions == 0


async def test_mounted_below_another_application(taken: list[bool]) -> None:
    from fastapi import FastAPI

    inner = create_app(Recording, Do, Saw)
    outer = FastAPI()
    outer.mount("/env", inner)
    async with serving(outer) as server:
        peer = await server.connect("/env/ws")
        assert (await peer.reset())["type"] == "observation"
    assert taken == [True]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return key, cert


async def test_tls_is_left_to_the_server(taken: list[bool], certificate: tuple[Path, Path]) -> None:
    import websockets

    key, cert = certificate

    trust = ssl.create_default_context(cafile=str(cert))
    app = create_app(Recording, Do, Saw)
    async with serving(app, ssl_keyfile=str(key), ssl_certfile=str(cert)) as server:
        url = f"wss://localhost:{server.port}/ws"
        async with websockets.connect(url, ssl=trust, proxy=None) as ws:
            await ws.send('{"type": "reset"}')
            assert "fresh" in str(await ws.recv())
        ws.transport.abort()
    assert taken == [False]


async def test_shutdown_says_goodbye(taken: list[bool]) -> None:
    Recording.made.clear()
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        server.hang_up = lambda: None  # type: ignore[method-assign]
    assert (await peer.closed()).code == 1012
    peer.drop()
    assert Recording.made[0].closed
    assert taken == [True]


async def test_the_kernel_watches_the_peer() -> None:
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        await peer.reset()
        session = next(iter(server.sessions.sessions.values()))
        sock = session.attached._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == takeover.TCP_DEAD * 1000


async def test_a_hundred_clean_connections_log_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: C18
    Mutation: raise or log an error in TakenConnection.connection_lost
    """
    caplog.set_level(logging.DEBUG)
    async with serving(create_app(Recording, Do, Saw)) as server:
        for n in range(100):
            peer = await server.connect()
            await peer.reset()
            if n % 2:
                peer.send({"type": "close"})
            else:
                peer.raw(frames.CLOSE, frames.close_payload(1000))
            assert (await peer.closed()).code == 1000
            if n % 2:
                peer.raw(frames.CLOSE, frames.close_payload(1000))
            peer.writer.close()
        await until(lambda: server.sessions.active_sessions == 0)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")
def test_under_uvloop(taken: list[bool]) -> None:
    import uvloop

    async def main() -> None:
        async with serving(create_app(Recording, Do, Saw)) as server:
            await converse(server)
            peer = await server.connect()
            assert len((await peer.step("big:", size=5_000_000))["data"]["observation"]["text"]) == 5_000_000

    uvloop.run(main())
    assert taken == [True, True]


async def test_answers_from_the_thread_and_pongs_from_the_loop_never_mix() -> None:
    """Answers of a size the socket takes in part, with pings all the while: every frame is whole and in order.

    Mutation: forget the rest of an answer that the socket took in part in DirectSending._send_direct
    """
    count = 300
    async with serving(create_app(Recording, Do, Saw)) as server:
        peer = await server.connect()
        direct = 0
        real = takeover.TakenConnection._send_direct

        def counted(self: Any, frame: bytes) -> bool:
            nonlocal direct
            sent = real(self, frame)
            direct += sent
            return sent

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(takeover.TakenConnection, "_send_direct", counted)

            async def talk() -> None:
                for n in range(count):
                    size = (10, 300_000, 3_000_000)[n % 3 if n % 30 == 2 else n % 2]
                    peer.send({"type": "step", "data": {"what": f"big:{n}", "size": size}})
                    peer.raw(frames.PING, b"%d" % n)
                    await peer.writer.drain()

            talking = asyncio.create_task(talk())
            texts: list[int] = []
            pongs: list[int] = []
            while len(texts) < count or len(pongs) < count:
                opcode, payload = await peer.frame()
                if opcode == frames.PONG:
                    pongs.append(int(payload))
                else:
                    texts.append(len(json.loads(payload)["data"]["observation"]["text"]))
            await talking
        assert pongs == list(range(count))
        assert texts == [(10, 300_000, 3_000_000)[n % 3 if n % 30 == 2 else n % 2] for n in range(count)]
        assert direct > 0
