"""What a vendor's SDK connects to: API calls go to the face's ASGI app, port traffic into the boxes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox.testing.faults import FakeApiError

from ._box import Box, BoxGone
from ._hooks import drop
from ._http import LIMIT, BadRequest, RequestHead, answer, read_head

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Mapping

    from typing_extensions import Self

    from ._engine import Engine

_MARK = "x-engine-connection"


@dataclass(frozen=True)
class PortRoute:
    """The request belongs to a port of a box.

    Attributes:
        box, port: Whose.
        path: The request target to send on instead of the one that came.
        token: A label under which upgrades are counted, e.g. which credential was shown.
        strip: Headers (lower case) that the vendor keeps to itself.
        add: Headers that it adds.
    """

    box: Box
    port: int
    path: str | None = None
    token: str = ""
    strip: frozenset[str] = frozenset()
    add: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """The vendor's gateway answers by itself."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | str | Mapping[str, Any] = b""

    def encode(self, *, head: bool = False) -> bytes:
        """As bytes."""
        headers, body = dict(self.headers), self.body
        if not isinstance(body, (bytes, str)):
            headers.setdefault("content-type", "application/json")
            body = json.dumps(body)
        return answer(self.status, headers, body.encode() if isinstance(body, str) else body, head=head)


class Face(ABC):
    """One vendor, over the engine.

    Attributes:
        app: The ASGI application that answers API calls; made in the constructor.
        upgrades: WebSocket upgrades that a box has answered with 101, by (box id, port, token label).
    """

    app: Any = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.upgrades: Counter[tuple[str, int, str]] = Counter()

    @abstractmethod
    def route(self, head: RequestHead) -> PortRoute | Refusal | Awaitable[PortRoute | Refusal | None] | None:
        """Whose a request is: a box's port, refused by the gateway, or (None) the app's. May be a coroutine."""

    def unreachable(self, head: RequestHead, route: PortRoute, error: Exception) -> Refusal:
        """What the gateway says when nothing listens at the port, or the box does not run."""
        return Refusal(502, {"content-type": "text/plain"}, f"port {route.port} of {route.box.id}: {error}\n")


class Front:
    """Context manager that serves a face on 127.0.0.1. One connection carries one request, or one WebSocket.

    Args:
        engine: Must run.
        face: Whose `route` and ``app``.
        tls: Speak TLS.

    Attributes:
        url, port: Where it listens.
        requests: Every head that came, in order.
    """

    def __init__(self, engine: Engine, face: Face, tls: ssl.SSLContext | None = None) -> None:
        self.engine, self.face, self.tls = engine, face, tls
        self.port = 0
        self.url = ""
        self.requests: list[RequestHead] = []
        self._open: dict[int, asyncio.StreamWriter] = {}
        self._routes: dict[int, Box] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._count = 0

    def __enter__(self) -> Self:
        self.engine.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.call(self._stop())

    def cut(self, box: Box) -> None:
        """Cut every connection into ``box``, from any other thread."""
        self.engine.call(self._cut(box))

    async def _cut(self, box: Box) -> None:
        for mark in [mark for mark, other in self._routes.items() if other is box]:
            self._open[mark].transport.abort()

    async def _start(self) -> None:
        self._path = str(self.engine.tmp / f"front-{uuid.uuid4().hex[:12]}.sock")
        if self.face.app is not None:
            await self._serve_app()
        self._server = await asyncio.start_server(
            self._connection, "127.0.0.1", 0, ssl=self.tls, limit=LIMIT, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve_app(self) -> None:
        import uvicorn

        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            interface="asgi3",
            lifespan="off",
            ws="websockets-sansio",
            backlog=512,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = uvicorn.Server(config)
        self._app_task = self.engine.keep(self._uvicorn.serve(sockets=[listener]))
        while not self._uvicorn.started:
            if self._app_task.done():
                self._app_task.result()
            await asyncio.sleep(0.005)

    async def _stop(self) -> None:
        self._server.close()
        for writer in list(self._open.values()):
            writer.transport.abort()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self.face.app is not None:
            self._uvicorn.should_exit = True
            await self._app_task

    # ------------------------------------------------------------------------------------------------------ app

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != _MARK.encode()]
        mark = next((int(value) for name, value in scope["headers"] if name == _MARK.encode()), -1)
        dropped = False

        def cut() -> None:
            nonlocal dropped
            dropped = True
            if (writer := self._open.get(mark)) is not None:
                writer.transport.abort()

        async def say(message: Any) -> None:
            if not dropped:
                await send(message)

        token = drop.set(cut)
        try:
            await self.face.app({**scope, "headers": headers}, receive, say)
        except FakeApiError as error:
            if not dropped:
                raise RuntimeError(f"the face has no shape for {error.status}") from error
        finally:
            drop.reset(token)
        while dropped and (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            continue

    # ------------------------------------------------------------------------------------------------------ wire

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        mark = self._count
        self._open[mark] = writer
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._request(mark, reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        except BadRequest as error:
            writer.write(answer(400, {"content-type": "text/plain"}, f"{error}\n".encode()))
        finally:
            # Over TLS closing waits for the other end: until then it is still one that `_stop` has to cut.
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                writer.close()
                await writer.wait_closed()
            self._serving.discard(task)
            del self._open[mark]
            self._routes.pop(mark, None)

    async def _request(self, mark: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if head is None:
            return
        self.requests.append(head)
        found = self.face.route(head)
        route = await found if inspect.isawaitable(found) else found
        if isinstance(route, Refusal):
            return await self._refuse(reader, writer, head, route)
        close = {} if head.upgrade else {"connection": "close"}
        try:
            if route is None:
                up_reader, up_writer = await asyncio.open_unix_connection(self._path, limit=1 << 20)
                up_writer.write(head.encode(add={_MARK: str(mark), **close}))
            else:
                self._routes[mark] = route.box
                up_reader, up_writer = await route.box.connect(route.port)
                up_writer.write(head.encode(target=route.path, drop=route.strip, add={**route.add, **close}))
        except (OSError, BoxGone) as error:
            if route is None:
                raise
            return await self._refuse(reader, writer, head, self.face.unreachable(head, route, error))
        try:
            await self._splice(head, route, (reader, writer), (up_reader, up_writer))
        finally:
            up_writer.transport.abort()

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: RequestHead, refusal: Refusal
    ) -> None:
        writer.write(refusal.encode(head=head.method == "HEAD"))
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        # Closing with input unread would reset the connection, and the answer could be lost on the way.
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(_discard(reader), 1.0 if head.get("content-length", "0") != "0" else 0.05)

    async def _splice(
        self,
        head: RequestHead,
        route: PortRoute | None,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        up = asyncio.ensure_future(_pump(client[0], upstream[1]))
        try:
            if head.upgrade:
                first = await upstream[0].readline()
                client[1].write(first)
                if first.split(b" ")[1:2] == [b"101"]:
                    if route is not None:
                        self.face.upgrades[(route.box.id, route.port, route.token)] += 1
                else:  # refused: what follows on this connection would reach the box unrouted
                    up.cancel()
            down = asyncio.ensure_future(_pump(upstream[0], client[1]))
            try:
                # The answer may come before the request has ended; the client's end is the end of both.
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                if up.cancelled() or not up.done() or up.exception() is not None:
                    await down
                elif not down.done():
                    await asyncio.wait({down}, timeout=0.05)
            finally:
                down.cancel()
                await asyncio.gather(down, return_exceptions=True)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass
