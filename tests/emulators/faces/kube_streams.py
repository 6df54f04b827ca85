"""``exec`` and ``portforward``: channels over WebSockets, as the API server speaks them.

Each message is one byte, the channel, and data. ``exec``: 0 stdin, 1 stdout, 2 stderr, 3 the Status of the end; in
``v5.channel.k8s.io`` 255 and a channel's number closes that channel, in ``v4`` nothing closes stdin. ``portforward``:
0 data and 1 error for the first port, both begun by the port as two bytes, low one first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect
from websockets import http11

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import BoxGone
from tests.emulators.faces.kube_store import Problem

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from tests.emulators.engine import Box
    from tests.emulators.faces.kube_face import KubeFace

# A command is part of the address, and the API server takes heads of 1 MiB; here the front takes 64 KiB.
http11.MAX_LINE_LENGTH = 1 << 16
# What runs in this process is the server: what it hears is not what the library logs.
logging.getLogger("uvicorn.error").setLevel(logging.INFO)

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


class Streams:
    """Both subresources.

    Attributes:
        protocols: What the server speaks; a test takes v5 away.
        spoken: The protocol of each exec, in order.
        commands: Their argv.
    """

    def __init__(self, face: KubeFace) -> None:
        self.face = face
        self.protocols: tuple[str, ...] = (V5, V4)
        self.spoken: list[str] = []
        self.commands: list[list[str]] = []
        self.open: set[WebSocket] = set()

    async def exec(self, ws: WebSocket) -> None:
        """A command."""
        try:
            box = self._running(ws)
            async with self.face.engine.hooked("exec"):
                protocol = self._agree(ws, self.protocols)
        except Problem as problem:
            return await _deny(ws, problem)
        except FakeApiError as error:
            return await _deny(ws, self.face.problem(error))
        query = ws.query_params
        argv = query.getlist("command")
        if query.get("container") != "env" or query.get("stdout") != "true" or not argv:
            return await _deny(ws, Problem(400, "BadRequest", f"bad exec options: {dict(query)}"))
        await ws.accept(subprotocol=protocol)
        self.spoken.append(protocol)
        self.commands.append(argv)
        await self._command(ws, box, argv, query.get("stdin") == "true", protocol)

    async def _command(self, ws: WebSocket, box: Box, argv: list[str], stdin: bool, protocol: str) -> None:
        try:
            proc = await box.exec(argv, env=box.env, cwd=box.workdir, user=box.user, stdin=stdin)
        except (OSError, BoxGone) as error:
            why = f'OCI runtime exec failed: exec failed: unable to start container process: exec: "{argv[0]}": {error}'
            await self._end(ws, {"status": "Failure", "reason": "InternalError", "code": 500, "message": why})
            return
        feeding: asyncio.Future[Any] = asyncio.ensure_future(self._feed(ws, proc, protocol))

        async def pump(channel: int, stream: Any) -> None:
            async for data in stream:
                await ws.send_bytes(bytes([channel]) + data)

        # A process left in the background that holds the pipes holds the command.
        running: asyncio.Future[Any] = asyncio.ensure_future(
            asyncio.gather(pump(1, proc.stdout), pump(2, proc.stderr), proc.wait())
        )
        try:
            done, _ = await asyncio.wait({running, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if running not in done:
                with contextlib.suppress(Exception):
                    feeding.result()
                return  # the client went; the command goes on
            code = running.result()[2]
            if box.state == "stopped":
                return  # cut, as with the container
            said: dict[str, Any] = {"metadata": {}, "status": "Success"}
            if code != 0:
                causes = [{"reason": "ExitCode", "message": str(code)}]
                said = {
                    "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes},
                    "message": f"command terminated with non-zero exit code: exit status {code}",
                }  # fmt: skip
            await self._end(ws, said)
        except (WebSocketDisconnect, RuntimeError):
            return
        finally:
            feeding.cancel()
            running.cancel()
            await asyncio.gather(feeding, running, return_exceptions=True)

    async def _feed(self, ws: WebSocket, proc: Any, protocol: str) -> None:
        """What the client sends; returns when it has gone."""
        try:
            while True:
                data = await ws.receive_bytes()
                with contextlib.suppress(BrokenPipeError):
                    if data[:1] == b"\0":
                        await proc.write(data[1:])
                    elif data == b"\xff\0" and protocol == V5:
                        await proc.close_stdin()
        except (WebSocketDisconnect, RuntimeError, KeyError):
            await proc.close_stdin()

    async def _end(self, ws: WebSocket, status: dict[str, Any]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await ws.send_bytes(b"\3" + json.dumps(status).encode())
            await ws.close()

    async def portforward(self, ws: WebSocket) -> None:
        """One connection to one port."""
        try:
            box = self._running(ws)
            self._agree(ws, (V4,))
            ports = ws.query_params.getlist("ports")
            if len(ports) != 1 or not ports[0].isdigit():
                raise Problem(400, "BadRequest", f"query parameter 'ports' is required: {ports}")
        except Problem as problem:
            return await _deny(ws, problem)
        await ws.accept(subprotocol=V4)
        port = int(ports[0])
        for channel in (0, 1):
            await ws.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await box.connect(port)
        except (OSError, BoxGone) as error:
            why = f"error forwarding port {port} to pod {box.id}, uid : dial tcp4 127.0.0.1:{port}: {error}"
            await ws.send_bytes(b"\1" + why.encode())
            await ws.close()
            return
        await self._relay(ws, box, port, reader, writer)

    async def _relay(self, ws: WebSocket, box: Box, port: int, reader: Any, writer: Any) -> None:
        async def down() -> None:
            first = True
            while data := await reader.read(1 << 16):
                if first and data.startswith(b"HTTP/1.1 101"):
                    self.face.upgrades[(box.id, port, "")] += 1
                first = False
                await ws.send_bytes(b"\0" + data)

        async def up() -> None:
            while True:
                data = await ws.receive_bytes()
                if data[:1] == b"\0":
                    writer.write(data[1:])
                    await writer.drain()

        both = [asyncio.ensure_future(down()), asyncio.ensure_future(up())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.transport.abort()
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await ws.close()

    def _running(self, ws: WebSocket) -> Box:
        self.face.authorize(ws.headers.get("authorization", ""))
        name = ws.path_params["name"]
        self.face.store.get("pods", name)
        box = self.face.kubelet.box(name)
        if box is None or box.state != "running":
            raise Problem(400, "BadRequest", f"cannot exec into a container in a completed pod: {name}")
        return box

    def _agree(self, ws: WebSocket, spoken: tuple[str, ...]) -> str:
        offered = [item.strip() for item in ws.headers.get("sec-websocket-protocol", "").split(",")]
        for protocol in offered:
            if protocol in spoken:
                return protocol
        raise Problem(403, "Forbidden", "requested protocol(s) are not supported")


async def _deny(ws: WebSocket, problem: Problem) -> None:
    await ws.send_denial_response(JSONResponse(problem.status(), problem.code, problem.headers))
