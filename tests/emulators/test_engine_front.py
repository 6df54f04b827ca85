"""The front: API calls to the app, port traffic into boxes, each request by itself."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import ConnectError, OpenEnvError
from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Box, Face, Front, PortRoute, Refusal, RequestHead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.websockets import WebSocket

    from tests.emulators.engine import Engine


class PlainFace(Face):
    """``/p/BOX/PORT/…`` and the host ``PORT-BOX.localhost`` lead to ports; everything else is an API that echoes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.ended: list[str] = []
        self.app = Starlette(
            routes=[
                Route("/echo", self.echo, methods=["GET", "POST", "HEAD"]),
                Route("/stream", self.stream),
                Route("/fault", self.fault, methods=["POST"]),
                WebSocketRoute("/ws", self.websocket),
            ]
        )

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        return JSONResponse({"headers": dict(request.headers), "size": len(body)})

    async def stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"part\n"
                    await asyncio.sleep(0.01)
            finally:
                self.ended.append("stream")

        return StreamingResponse(parts())

    async def fault(self, request: Request) -> Response:
        try:
            async with self.engine.hooked("create", name=request.query_params.get("name")):
                self.ended.append("acted")
        except FakeApiError as error:
            return JSONResponse({"error": error.message}, error.status or 500)
        return JSONResponse({}, 201)

    async def websocket(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        if head.host.endswith(".localhost"):
            port, _, id = head.host.removesuffix(".localhost").partition("-")
            return PortRoute(self.engine.boxes[id], int(port), token=head.get("x-token"), strip=frozenset({"x-token"}))
        if not head.path.startswith("/p/"):
            return None
        _, _, id, port, rest = head.path.split("/", 4)
        box = self.engine.boxes.get(id)
        if box is None:
            return Refusal(404, {"x-why": "gone"}, {"error": f"no {id}"})
        if head.query.get("token") == "wrong":
            return Refusal(401, body="who are you")
        return PortRoute(box, int(port), f"/{rest}", token=head.query.get("token", ""), add={"x-from": "gateway"})


@pytest.fixture
def face(engine: Engine) -> PlainFace:
    return PlainFace(engine)


@pytest.fixture
def front(engine: Engine, face: PlainFace) -> Iterator[Front]:
    with Front(engine, face) as front:
        yield front


@pytest.fixture
def box(engine: Engine) -> Box:
    box = engine.call(engine.create(engine.image("light"), id="b1"))
    engine.call(listening(box))
    return box


async def listening(box: Box) -> None:
    while True:
        try:
            _, writer = await box.connect(8000)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
        else:
            return writer.close()


def until(probe: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not probe():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def raw(front: Front, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as sock:
        sock.sendall(data)
        out = b""
        while part := sock.recv(65536):
            out += part
    return out


def test_api_calls_reach_the_app(front: Front) -> None:
    with httpx.Client(base_url=front.url) as client:
        for size in (0, 10, 3_000_000):
            reply = client.post("/echo", content=b"x" * size, headers={"X-Mine": "1"})
            assert reply.json()["size"] == size
            assert reply.json()["headers"]["x-mine"] == "1"
            assert "x-engine-connection" not in reply.json()["headers"]
        assert client.post("/echo", content=iter([b"ab", b"c"])).json()["size"] == 3
        assert client.head("/echo").status_code == 200
        assert client.get("/nothing").status_code == 404
    assert [head.path for head in front.requests].count("/echo") == 5


def test_the_app_speaks_websocket(front: Front, face: PlainFace) -> None:
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{front.port}/ws") as client:
        client.send("hello")
        assert client.recv() == "hello"
    assert not face.upgrades, "only what reaches a box counts"


def test_the_apps_streams_end_with_the_client(front: Front, face: PlainFace) -> None:
    with httpx.stream("GET", f"{front.url}/stream") as reply:
        assert next(reply.iter_bytes()).startswith(b"part")
    until(lambda: face.ended == ["stream"], "the app sees the client's end")


@pytest.mark.usefixtures("box")
def test_ports_by_path_and_by_host(front: Front) -> None:
    assert httpx.get(f"{front.url}/p/b1/8000/health").json() == {"status": "healthy"}
    seen = httpx.get(f"{front.url}/p/b1/8000/headers").json()
    assert seen["x-from"] == "gateway"
    assert seen["host"] == f"127.0.0.1:{front.port}"
    seen = httpx.get(f"{front.url}/headers", headers={"Host": "8000-b1.localhost:80", "X-Token": "secret"}).json()
    assert "x-token" not in seen
    assert "x-from" not in seen


@pytest.mark.usefixtures("box")
def test_every_request_is_routed(front: Front) -> None:
    with httpx.Client() as client:
        first = client.get(f"{front.url}/p/b1/8000/health")
        assert first.headers["connection"] == "close"
        assert client.get(f"{front.url}/p/zz/8000/health").status_code == 404
        assert client.get(f"{front.url}/echo").status_code == 200
    pipelined = b"GET /p/b1/8000/health HTTP/1.1\r\nHost: x\r\n\r\nGET /p/b1/8000/state HTTP/1.1\r\nHost: x\r\n\r\n"
    assert raw(front, pipelined).count(b"HTTP/1.1") == 1


@pytest.mark.usefixtures("box")
def test_refusals(front: Front, face: PlainFace) -> None:
    reply = httpx.post(f"{front.url}/p/zz/8000/step", content=b"x" * 1_000_000)
    assert (reply.status_code, reply.json(), reply.headers["x-why"]) == (404, {"error": "no zz"}, "gone")
    assert httpx.get(f"{front.url}/p/b1/8000/health?token=wrong").text == "who are you"
    assert httpx.get(f"{front.url}/p/b1/8001/health").status_code == 502
    assert raw(front, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(front, b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert not face.upgrades


async def episode(url: str, **how: Any) -> dict[str, Any]:
    async with GenericEnvClient(base_url=url, **how) as client:
        await client.reset()
        result = await client.step({"n": 1})
        assert (await client.state())["step_count"] == 1
        observation: dict[str, Any] = result.observation
        return observation


@pytest.mark.usefixtures("box")
def test_upgrades_are_counted(front: Front, face: PlainFace) -> None:
    assert asyncio.run(episode(f"{front.url}/p/b1/8000"))["echo"] == {"n": 1}
    assert face.upgrades == {("b1", 8000, ""): 1}
    asyncio.run(episode(f"{front.url}/p/b1/8000"))
    assert face.upgrades == {("b1", 8000, ""): 2}


def test_a_refused_upgrade_counts_for_nothing(engine: Engine, front: Front, face: PlainFace) -> None:
    box = engine.call(
        engine.create(engine.image("light"), id="b1", env={"OPENENV_AUTH_TOKEN": "right-token-0123456789"})
    )
    engine.call(listening(box))
    upgrade = (
        b"GET /p/b1/8000/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    )
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as sock:
        sock.sendall(upgrade + b"\r\n")
        assert sock.recv(12) == b"HTTP/1.1 401"
        sock.sendall(b"GET /state HTTP/1.1\r\nAuthorization: Bearer right-token-0123456789\r\n\r\n")
        rest = b""
        sock.settimeout(0.3)
        try:
            while part := sock.recv(65536):
                rest += part
        except TimeoutError:
            pass
    assert b"step_count" not in rest, "what follows must not reach the box unrouted"
    assert not face.upgrades
    with pytest.raises(ConnectError):
        asyncio.run(episode(f"{front.url}/p/zz/8000"))


def test_tls(engine: Engine, face: PlainFace, box: Box) -> None:
    context, certificate = engine.tls("*.proxy.example")
    trust = ssl.create_default_context(cafile=str(certificate))
    with Front(engine, face, context) as front:
        assert front.url.startswith("https://127.0.0.1:")
        assert httpx.get(f"{front.url}/echo", verify=trust).status_code == 200
        with httpx.Client(verify=trust) as client:
            reply = client.get(
                f"{front.url}/health",
                headers={"Host": "8000-b1.localhost"},
                extensions={"sni_hostname": "8000-b1.proxy.example"},
            )
            assert reply.json() == {"status": "healthy"}
            with pytest.raises(httpx.ConnectError, match="mismatch"):
                client.get(f"{front.url}/health", extensions={"sni_hostname": "other.example"})
        with pytest.raises(httpx.ConnectError, match="self-signed"):
            httpx.get(front.url)


def test_faults_by_rule(engine: Engine, front: Front, face: PlainFace) -> None:
    url = f"{front.url}/fault"
    rule = engine.faults.add("create", status=503, message="busy", times=2, match=lambda args: args["name"] == "a")
    assert httpx.post(url).status_code == 201
    for _ in range(2):
        reply = httpx.post(f"{url}?name=a")
        assert (reply.status_code, reply.json()) == (503, {"error": "busy"})
    assert httpx.post(f"{url}?name=a").status_code == 201
    assert rule.hits == 2
    assert face.ended == ["acted"] * 2


@pytest.mark.parametrize(("when", "acted"), [("before", []), ("after", ["acted"])])
def test_status_0_drops_the_connection(
    engine: Engine, front: Front, face: PlainFace, when: Any, acted: list[str]
) -> None:
    rule = engine.faults.add("create", when=when, status=0)
    with pytest.raises(httpx.RemoteProtocolError, match="without sending"):
        httpx.post(f"{front.url}/fault")
    assert (rule.hits, face.ended) == (1, acted)


def test_status_0_over_tls(engine: Engine, face: PlainFace) -> None:
    context, certificate = engine.tls()
    engine.faults.add("create", status=0)
    with Front(engine, face, context) as front, pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        httpx.post(f"{front.url}/fault", verify=ssl.create_default_context(cafile=str(certificate)))


def test_a_hanging_call_goes_on_without_its_client(engine: Engine, front: Front, face: PlainFace) -> None:
    rule = engine.faults.add("create", hang=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{front.url}/fault", timeout=0.2)
    assert rule.wait_reached()
    assert httpx.post(f"{front.url}/fault").status_code == 201, "others do not wait for it"
    rule.release()
    until(lambda: face.ended == ["acted", "acted"], "the call ends")


def test_a_cut_ends_what_is_open(engine: Engine, front: Front, face: PlainFace, box: Box) -> None:
    async def cut() -> None:
        async with GenericEnvClient(base_url=f"{front.url}/p/b1/8000") as client:
            await client.reset()
            assert (await asyncio.to_thread(httpx.get, f"{front.url}/p/b1/8000/health")).status_code == 200
            await asyncio.to_thread(front.cut, box)
            with pytest.raises(OpenEnvError):
                await client.step({})

    asyncio.run(cut())
    assert box.state == "running"


def test_a_deleted_box_ends_its_connections(engine: Engine, front: Front, box: Box) -> None:
    with httpx.stream("GET", f"{front.url}/p/b1/8000/health"):
        pass
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as sock:
        sock.sendall(
            b"GET /p/b1/8000/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(65536)
        assert b" 101 " in head
        engine.call(engine.delete("b1"))
        assert sock.recv(65536) == b""
    assert httpx.get(f"{front.url}/p/b1/8000/health").status_code == 404


@pytest.mark.anyio
@pytest.mark.usefixtures("no_blocking")
async def test_the_engine_is_exempt_from_the_guard(engine: Engine, front: Front, face: PlainFace) -> None:
    from blockbuster import BlockingError

    def on_engine(coro: Any) -> Any:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, engine.loop))

    async def vendor() -> list[str]:
        return os.listdir("/")

    assert "proc" in await on_engine(vendor())
    with pytest.raises(BlockingError):
        await vendor()
    box = await on_engine(engine.create(engine.image("light"), id="b1"))
    await on_engine(listening(box))
    assert (await episode(f"{front.url}/p/b1/8000"))["step"] == 1
    assert face.upgrades["b1", 8000, ""] == 1
