"""The daemon inside sandboxes of E2B and Novita: the Connect JSON protocol of processes, and plain HTTP for files.

Messages are those of the SDKs' generated stubs (``process/process.proto``); unknown and mistyped fields are refused.
What the daemon gives to a process of its own (PATH, HOME, USER, LOGNAME and the sandbox's variables; nothing of the
image), and its texts, are from knowledge of its public source: UNVERIFIED.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Box, BoxGone, NoSuchUser, Proc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from tests.emulators.faces.e2b_face import E2bFace

PORT = "49983"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HTTP = {
    "invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404, "unimplemented": 501,
    "internal": 500, "unavailable": 503,
}  # fmt: skip
_SIGNALS = {
    1: "hangup", 2: "interrupt", 3: "quit", 6: "aborted", 9: "killed", 11: "segmentation fault", 13: "broken pipe",
    15: "terminated",
}  # fmt: skip
_SHAPES: dict[str, dict[str, Any]] = {
    "Start": {"process": {"cmd": str, "args": list, "envs": dict, "cwd": str}, "pty": dict, "tag": str, "stdin": bool},
    "Connect": {"process": {"pid": int, "tag": str}},
    "List": {},
    "SendInput": {"process": {"pid": int, "tag": str}, "input": {"stdin": str, "pty": str}},
    "CloseStdin": {"process": {"pid": int, "tag": str}},
    "SendSignal": {"process": {"pid": int, "tag": str}, "signal": str},
}


class ConnectFault(Exception):
    """An error with a Connect code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(eq=False)
class Process:
    """One running command and who follows it."""

    proc: Proc
    tag: str
    config: dict[str, Any]
    stdin: bool
    followers: list[asyncio.Queue[dict[str, Any] | None]] = field(default_factory=list)

    def tell(self, event: dict[str, Any] | None) -> None:
        """One event to everybody; None breaks their streams off."""
        for queue in self.followers:
            queue.put_nowait(event)


class Envd:
    """The daemon of every sandbox.

    Args:
        face: Whose.
    """

    def __init__(self, face: E2bFace) -> None:
        self.face = face

    def routes(self) -> list[Route]:
        """Its paths, the same for all sandboxes: headers say whose."""
        streams = {"Start": self.start, "Connect": self.connect}
        unary = {
            "List": self.list,
            "SendInput": self.send_input,
            "CloseStdin": self.close_stdin,
            "SendSignal": self.send_signal,
        }
        return [
            *(
                Route(f"/process.Process/{n}", self.guard(h, n, stream=True), methods=["POST"])
                for n, h in streams.items()
            ),
            *(Route(f"/process.Process/{n}", self.guard(h, n), methods=["POST"]) for n, h in unary.items()),
            Route("/health", self.health, methods=["GET"]),
            Route("/files", self.files, methods=["GET", "POST"]),
        ]

    # ------------------------------------------------------------------------------------------------------- wire

    def box(self, request: Request) -> Box:
        """Whose request it is.

        Raises:
            FakeApiError: 502 where the sandbox does not run, as its proxy says it.
            ConnectFault: The token is wrong.
        """
        id = request.headers.get(self.face.boundary, "")
        box = self.face.engine.boxes.get(id)
        port = request.headers.get(self.face.boundary.replace("-id", "-port"))
        if box is None or box.state != "running" or port != PORT:
            raise FakeApiError(502, "The sandbox was not found")
        if request.headers.get("x-access-token") != box.data["envd"]:
            raise ConnectFault("unauthenticated", "unauthorized access, please provide a valid access token")
        return box

    def guard(
        self, handler: Callable[[Box, dict[str, Any], Request], Awaitable[Any]], name: str, *, stream: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """``handler`` with its message checked, and errors in Connect's shape."""

        async def guarded(request: Request) -> Response:
            try:
                box = self.box(request)
                message = _message(await request.body(), request.headers.get("content-type", ""), stream)
                _checked(message, _SHAPES[name], name)
                result = await handler(box, message, request)
            except FakeApiError as error:
                return JSONResponse({"message": error.message, "code": error.status}, error.status or 500)
            except ConnectFault as error:
                if stream and error.code != "unauthenticated":
                    return Response(_end(error), media_type="application/connect+json")
                return JSONResponse({"code": error.code, "message": error.message}, _HTTP[error.code])
            if stream:
                return StreamingResponse(result, media_type="application/connect+json")
            return JSONResponse(result)

        return guarded

    async def cut(self, box: Box) -> None:
        """Break every stream of a sandbox off, as a pause does."""
        for process in list(box.data["processes"].values()):
            process.tell(None)
            process.followers.clear()

    # -------------------------------------------------------------------------------------------------- processes

    async def start(self, box: Box, asked: dict[str, Any], request: Request) -> AsyncIterator[bytes]:
        """Start a command and follow it. It outlives the stream."""
        config = asked.get("process", {})
        if not config.get("cmd"):
            raise ConnectFault("invalid_argument", "a command is required")
        user = _user(request)
        await self.face.engine.hook("exec", "before")
        proc = await self.spawn(box, config, user, stdin=asked.get("stdin", True))
        process = Process(proc, asked.get("tag", ""), config, asked.get("stdin", True))
        box.data["processes"][proc.pid] = process
        queue = _join(process)
        queue.put_nowait({"start": {"pid": proc.pid}})
        self.face.engine.keep(self._pump(box, process))
        await self.face.engine.hook("exec", "after")
        return _stream(process, queue, request)

    async def spawn(self, box: Box, config: dict[str, Any], user: str, *, stdin: bool) -> Proc:
        """The process behind it."""
        home = "/root" if user == "root" else f"/home/{user}"
        own = {"PATH": PATH, "HOME": home, "USER": user, "LOGNAME": user}
        cwd = config.get("cwd") or home
        try:
            await box.mkdir(home)
            if cwd != home and not await _is_folder(box, cwd):
                raise ConnectFault("invalid_argument", f"cwd '{cwd}' does not exist")
            return await box.exec(
                [config["cmd"], *config.get("args", [])],
                env={**own, **box.data["env"], **config.get("envs", {})},
                cwd=cwd,
                user=user,
                stdin=stdin,
            )
        except NoSuchUser:
            raise ConnectFault("unauthenticated", f"invalid username: '{user}'") from None
        except BoxGone:
            raise FakeApiError(502, "The sandbox was not found") from None
        except OSError as error:
            raise ConnectFault("invalid_argument", f"fork/exec {config['cmd']}: {error.strerror}".lower()) from None

    async def _pump(self, box: Box, process: Process) -> None:
        async def one(name: str, stream: Any) -> None:
            async for data in stream:
                process.tell({"data": {name: base64.b64encode(data).decode()}})

        proc = process.proc
        pumps = asyncio.gather(one("stdout", proc.stdout), one("stderr", proc.stderr))
        await proc.wait()
        # What was left in the background may hold the pipes: what is there now is all there is.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(pumps), 0.1)
        pumps.cancel()
        box.data["processes"].pop(proc.pid, None)
        if box.state == "running" and box.id in self.face.engine.boxes:
            process.tell({"end": _ending(proc)})
        process.tell(None)

    async def connect(self, box: Box, asked: dict[str, Any], request: Request) -> AsyncIterator[bytes]:
        """Follow a running one; what it said before is not told again."""
        process = self._find(box, asked)
        queue = _join(process)
        queue.put_nowait({"start": {"pid": process.proc.pid}})
        return _stream(process, queue, request)

    async def list(self, box: Box, asked: dict[str, Any], request: Request) -> dict[str, Any]:
        """What runs."""
        found = [{"config": p.config, "pid": pid, "tag": p.tag} for pid, p in box.data["processes"].items()]
        return {"processes": found}

    async def send_input(self, box: Box, asked: dict[str, Any], request: Request) -> dict[str, Any]:
        """Write to its stdin."""
        process = self._find(box, asked)
        if not process.stdin:
            raise ConnectFault("invalid_argument", "stdin is not enabled for this process")
        with contextlib.suppress(BrokenPipeError):
            await process.proc.write(base64.b64decode(asked.get("input", {}).get("stdin", "")))
        return {}

    async def close_stdin(self, box: Box, asked: dict[str, Any], request: Request) -> dict[str, Any]:
        """End it."""
        await self._find(box, asked).proc.close_stdin()
        return {}

    async def send_signal(self, box: Box, asked: dict[str, Any], request: Request) -> dict[str, Any]:
        """TERM or KILL, to the process alone."""
        number = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}.get(asked.get("signal", ""))
        if number is None:
            raise ConnectFault("unimplemented", f"invalid signal: {asked.get('signal')}")
        await self._find(box, asked).proc.kill(number)
        return {}

    def _find(self, box: Box, asked: dict[str, Any]) -> Process:
        selector, running = asked.get("process", {}), box.data["processes"]
        if "pid" in selector and selector["pid"] in running:
            return running[selector["pid"]]  # type: ignore[no-any-return]
        for process in running.values():
            if selector.get("tag") and process.tag == selector["tag"]:
                return process  # type: ignore[no-any-return]
        raise ConnectFault("not_found", f"process with selector {selector} not found")

    # ------------------------------------------------------------------------------------------------------ files

    async def health(self, request: Request) -> Response:
        """Whether it runs."""
        try:
            self.box(request)
        except FakeApiError as error:
            return JSONResponse({"message": error.message, "code": error.status}, error.status)
        except ConnectFault:
            pass  # anybody may ask
        return Response(status_code=204)

    async def files(self, request: Request) -> Response:
        """Read one, or write those of a multipart form."""
        try:
            box = self.box(request)
            path = request.query_params.get("path", "")
            if request.method == "GET":
                return Response(await box.read(path), media_type="application/octet-stream")
            written = []
            async with request.form() as form:
                for name, file in form.multi_items():
                    if name != "file" or isinstance(file, str):
                        return JSONResponse({"code": 400, "message": f"unexpected form field {name}"}, 400)
                    target = path or str(file.filename)
                    await box.write(target, await file.read())
                    written.append({"name": target.rpartition("/")[2], "path": target, "type": "file"})
            return JSONResponse(written)
        except FakeApiError as error:
            return JSONResponse({"message": error.message, "code": error.status}, error.status)
        except ConnectFault as error:
            return JSONResponse({"message": error.message, "code": 401}, 401)
        except FileNotFoundError:
            return JSONResponse(
                {"message": f"path '{request.query_params.get('path')}' does not exist", "code": 404}, 404
            )


def _join(process: Process) -> asyncio.Queue[dict[str, Any] | None]:
    queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    process.followers.append(queue)
    return queue


async def _stream(
    process: Process, queue: asyncio.Queue[dict[str, Any] | None], request: Request
) -> AsyncIterator[bytes]:
    every = float(request.headers.get("keepalive-ping-interval", "90"))
    try:
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), every)
            except (asyncio.TimeoutError, TimeoutError):
                event = {"keepalive": {}}
            if event is None:
                return  # cut: no end-of-stream message
            yield _envelope(0, {"event": event})
            if "end" in event:
                yield _envelope(2, {})
                return
    finally:
        if queue in process.followers:
            process.followers.remove(queue)


def _ending(proc: Proc) -> dict[str, Any]:
    """As Go tells it: -1 for a signal."""
    returned = proc._process.returncode
    if returned < 0:
        return {"exitCode": -1, "exited": False, "status": f"signal: {_SIGNALS.get(-returned, str(-returned))}"}
    return {"exitCode": returned, "exited": True, "status": f"exit status {returned}"}


def _envelope(flags: int, message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def _end(error: ConnectFault) -> bytes:
    return _envelope(2, {"error": {"code": error.code, "message": error.message}})


def _message(body: bytes, kind: str, stream: bool) -> dict[str, Any]:
    wanted = "application/connect+json" if stream else "application/json"
    if kind.partition(";")[0] != wanted:
        raise FakeApiError(415, f"unsupported content type {kind!r}")
    if stream:
        flags, length = struct.unpack(">BI", body[:5]) if len(body) >= 5 else (0, -1)
        if flags != 0 or length != len(body) - 5:
            raise ConnectFault("invalid_argument", "protocol error: incomplete envelope")
        body = body[5:]
    try:
        message = json.loads(body)
    except ValueError:
        raise ConnectFault("invalid_argument", "unmarshal message: invalid JSON") from None
    if not isinstance(message, dict):
        raise ConnectFault("invalid_argument", "unmarshal message: an object is expected")
    return message


def _checked(message: dict[str, Any], shape: dict[str, Any], where: str) -> None:
    for name, value in message.items():
        wanted = shape.get(name)
        if wanted is None:
            raise ConnectFault("invalid_argument", f"unmarshal message: unknown field {name!r} of {where}")
        kind = dict if isinstance(wanted, dict) else wanted
        if not isinstance(value, kind):
            raise ConnectFault("invalid_argument", f"unmarshal message: invalid value for {name!r} of {where}")
        if isinstance(wanted, dict):
            _checked(value, wanted, name)


def _user(request: Request) -> str:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "user"
    return base64.b64decode(text).decode().partition(":")[0]


async def _is_folder(box: Box, path: str) -> bool:
    try:
        await box.listdir(path)
    except OSError:
        return False
    return True
