"""A server in the loop of the test, and a small WebSocket client that shows every frame."""

from __future__ import annotations

import asyncio
import json
import socket
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from openenv_sandbox.wire import frames
from openenv_sandbox.wire.limits import MIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.testclient import TestClient

    from openenv_sandbox.server.sessions import SessionManager

HANG = 20.0
"""Seconds after which a test says that something hangs."""


class Closed(Exception):
    """The server sent a close frame, or the connection ended (1006)."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Peer:
    """A client that does nothing by itself: pings are shown, not answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self.head = head
        self.status = int(head.split(" ", 2)[1])
        self._reader, self.writer = reader, writer
        self._frames = frames.FrameReader(300 * MIB, False)
        self._got: list[tuple[int, bytes]] = []

    def raw(self, opcode: int, payload: bytes) -> None:
        self.writer.write(frames.encode_frame(opcode, payload, mask=True))

    def send(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.raw(frames.TEXT, text.encode())

    async def frame(self) -> tuple[int, bytes]:
        while not self._got:
            data = await asyncio.wait_for(self._reader.read(1 << 16), HANG)
            if not data:
                raise Closed(frames.ABNORMAL)
            self._got = self._frames.feed(data)
        return self._got.pop(0)

    async def recv(self) -> Any:
        opcode, payload = await self.frame()
        if opcode == frames.CLOSE:
            raise Closed(*frames.parse_close(payload))
        assert opcode == frames.TEXT, (opcode, payload[:50])
        return json.loads(payload)

    async def call(self, message: Any) -> Any:
        self.send(message)
        return await self.recv()

    async def step(self, what: str = "", **fields: Any) -> Any:
        return await self.call({"type": "step", "data": {"what": what, **fields}})

    async def reset(self, **kwargs: Any) -> Any:
        return await self.call({"type": "reset", "data": kwargs})

    async def error(self, message: Any) -> Any:
        answer = await self.call(message)
        assert answer["type"] == "error", answer
        return answer["data"]

    async def closed(self) -> Closed:
        try:
            while True:
                await self.recv()
        except Closed as closed:
            return closed

    def drop(self) -> None:
        """Vanish without a word."""
        self.writer.transport.abort()


class Running:
    """A served application."""

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.port = port
        self._peers: list[Peer] = []

    @property
    def sessions(self) -> SessionManager:
        manager: SessionManager = self.app.state.openenv_server.sessions
        return manager

    def hang_up(self) -> None:
        for peer in self._peers:
            peer.writer.transport.abort()

    async def connect(self, path: str = "/ws", headers: dict[str, str] | None = None) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        wanted = {
            "Host": f"127.0.0.1:{self.port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": frames.new_key(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
            **(headers or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
        writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG)
        self._peers.append(Peer(reader, writer, head.decode()))
        return self._peers[-1]

    async def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        raw = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        wanted = {"Host": "localhost", "Content-Length": str(len(raw)), "Connection": "close", **(headers or {})}
        if body is not None:
            wanted["Content-Type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + raw)
        answer = (await asyncio.wait_for(reader.read(), HANG)).decode()
        writer.close()
        head, _, text = answer.partition("\r\n\r\n")
        first, *rest = head.split("\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
        return int(first.split(" ")[1]), found, text


@asynccontextmanager
async def serving(app: Any, *, port: int = 0, **config: Any) -> AsyncIterator[Running]:
    """Serve an application with uvicorn in this event loop."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, **config))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    await until(lambda: server.started or task.done())
    if task.done():
        sock.close()
        await task
    running = Running(app, sock.getsockname()[1])
    try:
        yield running
    finally:
        running.hang_up()
        server.should_exit = True
        await asyncio.wait_for(task, HANG)
        sock.close()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition; fails when it never comes."""

    for _ in range(int(HANG / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError("the condition never came true")


def in_process(app: Any, **options: Any) -> TestClient:
    """Starlette's test client, which asks for another HTTP library than the one it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient

        return TestClient(app, **options)
