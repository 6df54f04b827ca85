"""A server that plays the server's part of a recording and notes what the client under test sends."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import uvicorn

from tests.wire import normalise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]

Event = tuple[Any, ...]


class Script:
    """The two parts of a recording.

    Attributes:
        expected: What the client sent, in order: requests, upgrades, frames and closes.
        sockets: For each upgrade the answers to each frame, and whether the server then closes.
        responses: Status and body for each request.
    """

    def __init__(self, name: str) -> None:
        self.expected: list[Event] = []
        self.sockets: deque[deque[tuple[list[Any], bool]]] = deque()
        self.responses: deque[tuple[int, Any]] = deque()
        open_now: list[deque[tuple[list[Any], bool]]] = []
        closing = False
        for record in normalise.records(name):
            kind = record.get("t")
            if kind == "http" and record["path"] == "/health":  # the recording tool's own question
                continue
            if kind == "http":
                sent = normalise.headers(record["req_headers"])
                self.expected.append(("http", record["method"], record["path"], record["req"], sent))
                self.responses.append((record["status"], record["body"]))
            elif kind == "ws_open":
                self.expected.append(("open", record["path"], record["query"], normalise.headers(record["headers"])))
                open_now.append(deque())
                self.sockets.append(open_now[-1])
                closing = False
            elif record.get("event") == "close":
                if record["dir"] == "c2s":
                    self.expected.append(("close", record["code"]))
                    closing = True
                elif not closing:
                    answers, _ = open_now[-1][-1]
                    open_now.pop()[-1] = (answers, True)
            elif record["dir"] == "c2s":
                self.expected.append(("frame", record["frame"]))
                open_now[-1].append(([], False))
            else:
                open_now[-1][-1][0].append(record["frame"])


class ScriptedServer:
    """Serves a script on a thread of its own, so that blocking clients can be tested too.

    Attributes:
        seen: What the client sent, in the form of `Script.expected`.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Event] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            self._app, interface="asgi3", ws="websockets-sansio", lifespan="off", log_level="error", ws_max_size=2**27
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=30)
        self._socket.close()
        assert not self._thread.is_alive()

    async def _app(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        path, query = scope["path"], scope["query_string"].decode()
        headers = normalise.headers({key.decode(): value.decode() for key, value in scope["headers"]})
        if scope["type"] == "http":
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            self.seen.append(("http", scope["method"], path, json.loads(body or b"null"), headers))
            status, answer = self.script.responses.popleft() if self.script.responses else (599, None)
            kind = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": kind})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
            return
        await receive()
        self.seen.append(("open", path, query, headers))
        turns = self.script.sockets.popleft() if self.script.sockets else deque()
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.seen.append(("close", message["code"]))
                return
            self.seen.append(("frame", json.loads(message.get("text") or "null")))
            answers, ends = turns.popleft() if turns else ([], False)
            for answer in answers:
                await send({"type": "websocket.send", "text": json.dumps(answer)})
            if ends:
                await send({"type": "websocket.close", "code": 1000})
                return
