"""The face of an invented vendor, as small as the whole contract allows: what shows that the proof itself works."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Box, Face, PortRoute, QuotaReached, Refusal, RequestHead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from tests.emulators.engine import Engine

KEY = "mini-key-0123456789"
FIELDS: dict[str, type | tuple[type, ...]] = {
    "image": str,
    "argv": (list, type(None)),
    "env": dict,
    "labels": dict,
    "user": (str, type(None)),
    "workdir": (str, type(None)),
    "ttl_s": (int, float),
    "network": str,
}


class MiniFace(Face):
    """JSON over HTTP; ports under /p/ID/PORT with a header X-Mini-Token."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.tokens: dict[str, str] = {}
        self.issued = 0
        one = "/sandboxes/{id}"
        self.app = Starlette(
            routes=[
                Route("/sandboxes", self.guard(self.create), methods=["POST"]),
                Route("/sandboxes", self.guard(self.list)),
                Route(one, self.guard(self.info)),
                Route(one, self.guard(self.delete), methods=["DELETE"]),
                Route(one + "/extend", self.guard(self.extend), methods=["POST"]),
                Route(one + "/port", self.guard(self.port), methods=["POST"]),
                Route(one + "/exec", self.guard(self.exec), methods=["POST"]),
                Route(one + "/exit", self.guard(self.exit)),
                Route(one + "/log", self.guard(self.log)),
            ]
        )

    def guard(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {KEY}":
                return refusal(401, "unknown key")
            try:
                return await handler(request)
            except FakeApiError as error:
                headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
                return refusal(error.status or 500, error.message, headers)

        return guarded

    def box(self, request: Request) -> Box:
        box = self.engine.boxes.get(request.path_params["id"])
        if box is None:
            raise FakeApiError(404, f"no sandbox {request.path_params['id']}")
        return box

    async def create(self, request: Request) -> Response:
        asked = await request.json()
        wrong = [name for name, value in asked.items() if name not in FIELDS or not isinstance(value, FIELDS[name])]
        if wrong or "image" not in asked:
            return refusal(422, f"bad fields: {wrong or ['image']}")
        await self.engine.hook("create", "before", labels=asked["labels"])
        network = asked.pop("network", "full")
        try:
            box = await self.engine.create(id=f"mini-{secrets.token_hex(6)}", data={"network": network}, **asked)
        except QuotaReached as error:
            return refusal(429, str(error))
        except KeyError:
            return refusal(404, f"no image {asked['image']}")
        await self.engine.hook("create", "after")
        return JSONResponse(shown(box), 201)

    async def list(self, request: Request) -> Response:
        wanted = dict(item.split("=", 1) for item in request.query_params.getlist("label"))
        op = "find" if "oe-key" in wanted else "list"
        hooked = await self.engine.hook(op, "before")
        found = [shown(box) for box in self.engine.visible() if wanted.items() <= box.labels.items()]
        await self.engine.hook(op, "after")
        if hooked.half is not None:
            return Response(json.dumps(found)[: 40 * hooked.half], media_type="application/json")
        return JSONResponse(found)

    async def info(self, request: Request) -> Response:
        async with self.engine.hooked("info"):
            return JSONResponse(shown(self.box(request)))

    async def delete(self, request: Request) -> Response:
        async with self.engine.hooked("delete"):
            if not await self.engine.delete(request.path_params["id"]):
                raise FakeApiError(404, "no such sandbox")
        return Response(status_code=204)

    async def extend(self, request: Request) -> Response:
        box = self.box(request)
        box.set_ttl(max((await request.json())["ttl_s"], (box.ends_at or 0.0) - self.engine.clock.now()))
        return JSONResponse(shown(box))

    async def port(self, request: Request) -> Response:
        box = self.box(request)
        if box.id not in self.tokens:
            self.issued += 1
            self.tokens[box.id] = f"mini-token-{self.issued:04d}-{secrets.token_hex(4)}"
        return JSONResponse({"path": f"/p/{box.id}/{(await request.json())['port']}", "token": self.tokens[box.id]})

    async def exec(self, request: Request) -> Response:
        box, asked = self.box(request), await request.json()
        async with self.engine.hooked("exec"):
            env = {**box.env, **asked["env"]}
            cwd, user = asked["cwd"] or box.workdir, asked["user"] or box.user
            try:
                proc = await box.exec(asked["argv"], env=env, cwd=cwd, user=user, stdin=True)
            except OSError as error:
                return refusal(422, f"{error.filename}: {error.strerror}")
        feeding = self.engine.keep(feed(proc, base64.b64decode(asked["stdin"])))

        async def events() -> AsyncIterator[bytes]:
            queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

            async def pump(name: str, stream: Any) -> None:
                async for data in stream:
                    await queue.put({name: base64.b64encode(data).decode()})

            pumps = asyncio.gather(pump("stdout", proc.stdout), pump("stderr", proc.stderr))
            ended = asyncio.ensure_future(proc.wait())
            ended.add_done_callback(lambda _: queue.put_nowait({}))
            try:
                while not (ended.done() and queue.empty()):
                    if event := await queue.get():
                        yield json.dumps(event).encode() + b"\n"
                # What was left in the background may hold the pipes: what is there now is all there is.
                await asyncio.wait({pumps}, timeout=0.05)
                while not queue.empty():
                    yield json.dumps(queue.get_nowait()).encode() + b"\n"
                yield json.dumps({"code": ended.result()}).encode() + b"\n"
            finally:
                pumps.cancel()
                feeding.cancel()

        return StreamingResponse(events(), media_type="application/x-ndjson")

    async def exit(self, request: Request) -> Response:
        box = self.box(request)
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(box.gone.wait())]
        if box.main is not None:
            waits.append(asyncio.ensure_future(box.main.wait()))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if box.state == "stopped" or box.main is None:
            raise FakeApiError(404, f"no sandbox {box.id}")
        async for _ in box.log.follow():
            continue
        return JSONResponse({"code": box.main.code, "tail": base64.b64encode(bytes(box.log.data[-4096:])).decode()})

    async def log(self, request: Request) -> Response:
        return Response(bytes(self.box(request).log.data))

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        parts = head.path.split("/", 4)
        if len(parts) < 4 or parts[1] != "p":
            return None
        box = self.engine.boxes.get(parts[2])
        if box is None or box.state != "running":
            return Refusal(404, {}, b"no sandbox")
        token = head.get("x-mini-token")
        if token != self.tokens.get(box.id):
            return Refusal(401, {}, b"wrong port token")
        return PortRoute(box, int(parts[3]), path="/" + (parts[4] if len(parts) > 4 else ""), token=token[:15])


async def feed(proc: Any, data: bytes) -> None:
    try:
        await proc.write(data)
    except BrokenPipeError:
        return
    finally:
        await proc.close_stdin()


def shown(box: Box) -> dict[str, Any]:
    status = "stopped" if box.main is not None and box.main.code is not None else box.state
    return {"id": box.id, "labels": box.labels, "status": status, "ends_at": box.ends_at, "image": box.image.ref}


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"status": status, "message": message}}, status, headers)
