"""islo: the plane of the sandboxes, and the shares that publish their ports. Answers are the SDK's own models.

From docs.islo.dev: names of 2 to 255 characters, 1 to 8 cores, 256 to 8192 MB, 1 to 100 GB, what ``lifecycle`` means,
that a pause keeps processes, that whoever has a share's address may use it, and that shares go with their sandbox.
UNVERIFIED, since no page or SDK says it: that a taken name is 409 (there is a code for it), that an image which cannot
be pulled ends the sandbox as ``failed`` in a phase of that name, that full capacity is a 503 with
``RESOURCE_UNAVAILABLE``, the words of a status besides ``running`` and ``paused``, that commands get the variables of
create and not those of the image, who owns an uploaded file, how much of an output is kept, and that a share lets
WebSockets through. A share's address is a name of its own below ``share.islo.dev``; such names do not resolve here, so
the secret is the first segment of a path.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from islo import ExecResponse, ExecResultResponse, LifecyclePolicy, SandboxResponse, ShareResponse
from islo.types import FileUploadStatusResponse, PaginatedSandboxResponse
from islo.types import SandboxSpec as Sizes
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Box, BoxGone, Face, PortRoute, QuotaReached, Refusal, RequestHead
from tests.emulators.faces.islo_parts import Control, Problem, Snapshots, check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from tests.emulators.engine import Engine

CODES = {
    401: "AUTH_REQUIRED",
    402: "BILLING_NOT_ALLOWED",
    403: "ACCESS_DENIED",
    404: "NOT_FOUND",
    429: "RATE_LIMITED",
    500: "INTERNAL_ERROR",
    502: "BAD_GATEWAY",
    503: "INTERNAL_ERROR",
}
CREATE = {
    "name": str,
    "image": str,
    "snapshot_name": str,
    "env": dict,
    "vcpus": int,
    "memory_mb": int,
    "disk_gb": int,
    "internet_enabled": bool,
    "gateway_profile": str,
    "lifecycle": dict,
}
BOUNDS = {"vcpus": (1, 8, 2), "memory_mb": (256, 8192, 2048), "disk_gb": (1, 100, 10)}
EXEC = {"command": list, "env": dict, "user": str, "workdir": str, "timeout_secs": int}
SANDBOX_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{1,254}\Z")


class IsloFace(Face):
    """One tenant, both planes.

    Attributes:
        failed: Sandboxes that did not start, by name.
        shares: By their secret: share, box and port.
        results: Of commands, by id.
        page: Most rows of one page of a listing.
        stuck: Sandboxes never start.
        output_limit: Bytes of each stream that are kept.
        bodies: Bodies of creates, in order.
        execs: Bodies of commands, in order.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.base = ""
        self.failed: dict[str, dict[str, Any]] = {}
        self.starting: set[str] = set()
        self.shares: dict[str, tuple[ShareResponse, Box]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.page = 100
        self.stuck = False
        self.output_limit = 64 << 10
        self.bodies: list[dict[str, Any]] = []
        self.execs: list[dict[str, Any]] = []
        self.control, self.snapshots = Control(self), Snapshots(self)
        one = "/compute/sandboxes/{name}"
        routes = [
            ("POST", "/compute/sandboxes", self.create),
            ("GET", "/compute/sandboxes", self.list),
            ("GET", one, self.info),
            ("DELETE", one, self.delete),
            ("POST", f"{one}/pause", self.pause),
            ("POST", f"{one}/resume", self.resume),
            ("POST", f"{one}/exec", self.exec),
            ("GET", f"{one}/exec/{{id}}", self.result),
            ("POST", f"{one}/files", self.upload),
            ("GET", f"{one}/files", self.download),
            ("POST", f"{one}/shares", self.share),
            ("DELETE", f"{one}/shares/{{id}}", self.unshare),
            *self.control.routes(),
            *self.snapshots.routes(),
        ]
        self.app = Starlette(
            routes=[Route(path, self.guard(handler), methods=[method]) for method, path, handler in routes]
        )

    def guard(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            self.base = f"{request.url.scheme}://{request.headers['host']}"
            shown = request.headers.get("authorization", "").removeprefix("Bearer ")
            await request.body()  # an answer to a request that is still being sent could be lost on the way
            try:
                if request.url.path != "/control/auth/token" and shown not in self.control.tokens:
                    raise Problem(401, "AUTH_REQUIRED", "a session token is needed")
                return await handler(request)
            except FakeApiError as error:
                headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
                status = error.status or 500
                return JSONResponse(
                    {"code": CODES.get(status, "INTERNAL_ERROR"), "message": error.message}, status, headers
                )
            except Problem as error:
                return JSONResponse(error.body, error.status)
            except BoxGone as error:
                return JSONResponse({"code": "SANDBOX_INVALID_STATE", "message": str(error)}, 409)
            except (ValidationError, ValueError) as error:
                return JSONResponse({"code": "VALIDATION_ERROR", "message": str(error)}, 422)

        return guarded

    def named(self, name: str) -> Box:
        """A box by its name, which is its id here."""
        box = self.engine.boxes.get(name)
        if box is None:
            raise Problem(404, "SANDBOX_NOT_FOUND", f"sandbox {name} not found")
        return box

    # ------------------------------------------------------------------------------------------------ sandboxes

    async def create(self, request: Request) -> Response:
        asked = check(await request.json(), CREATE)
        self.bodies.append(asked)
        sizes = {}
        for field, (least, most, default) in BOUNDS.items():
            sizes[field] = asked.get(field, default)
            if not least <= sizes[field] <= most:
                raise Problem(422, "VALIDATION_ERROR", f"{field}: {least} to {most}")
        name = asked.get("name") or f"slug-{secrets.token_hex(4)}"
        if not SANDBOX_NAME.match(name):
            raise Problem(422, "VALIDATION_ERROR", "name: 2 to 255 of [a-z0-9_-]")
        life = LifecyclePolicy(**asked.get("lifecycle") or {})
        await self.engine.hook("create", "before", name=name)
        if name in self.engine.boxes or name in self.failed:
            raise Problem(409, "SANDBOX_ALREADY_EXISTS", f"sandbox {name} already exists")
        profile = asked.get("gateway_profile")
        if profile and not any(profile in (one["name"], one["id"]) for one in self.control.profiles.values()):
            raise Problem(400, "INVALID_REQUEST", f"no gateway profile {profile}")
        snapshot = asked.get("snapshot_name")
        image = f"islo-snapshot/{snapshot}" if snapshot else asked.get("image", "")
        fields = {"id": str(uuid.uuid4()), "image": image, "sizes": sizes, "life": life, "profile": profile}
        try:
            box = await self.engine.create(
                image, id=name, run_image=False, env=asked.get("env") or {}, ttl_s=life.delete_after, data=fields
            )
        except QuotaReached as error:
            more = {"resource": "sandboxes", "limit": self.engine.quota, "available": 0, "requested": 1}
            raise Problem(503, "RESOURCE_UNAVAILABLE", str(error), **more) from None
        except KeyError:
            await self.engine.hook("create", "after")
            self.failed[name] = {**fields, "created_at": self.engine.clock.now()}
            return self.answer(self.failure(name), 201)
        box.data["env"] = asked.get("env") or {}
        if box.workdir:
            await box.mkdir(box.workdir)
        self.starting.add(name)
        await self.engine.hook("create", "after")
        return self.answer(self.shown(box), 201)

    def answer(self, model: Any, status: int = 200) -> Response:
        return Response(model.json(), status, media_type="application/json")

    def shown(self, box: Box) -> SandboxResponse:
        status = {"running": "running", "paused": "paused", "stopped": "stopped"}[box.state]
        status = "provisioning" if box.id in self.starting else status
        return self.row(box.id, box.data, box.created_at, status)

    def failure(self, name: str) -> SandboxResponse:
        record = self.failed[name]
        return self.row(name, record, record["created_at"], "failed", creation_phase="pulling_image")

    def row(self, name: str, data: dict[str, Any], created: float, status: str, **more: Any) -> SandboxResponse:
        return SandboxResponse(
            id=data["id"],
            name=name,
            status=status,
            image=data["image"],
            created_at=iso(created),
            lifecycle=data["life"],
            spec=Sizes(**data["sizes"]),
            **more,
        )

    async def list(self, request: Request) -> Response:
        query = dict(request.query_params)
        if unknown := set(query) - {"name_prefix", "limit", "cursor"}:
            raise Problem(422, "VALIDATION_ERROR", f"{unknown.pop()}: unknown parameter")
        prefix = query.get("name_prefix", "")
        op = "find" if len(prefix.split("-")) > 2 else "list"
        hooked = await self.engine.hook(op, "before")
        rows = [self.shown(box) for box in self.engine.visible()] + [self.failure(name) for name in self.failed]
        rows = sorted((row for row in rows if row.name.startswith(prefix)), key=lambda row: row.name)
        total = len(rows)
        rows = [row for row in rows if row.name > query.get("cursor", "")]
        page = rows[: min(int(query.get("limit", "50")), self.page)]
        await self.engine.hook(op, "after")
        more = page[-1].name if len(page) < len(rows) else None
        found = PaginatedSandboxResponse(items=page, limit=self.page, offset=0, total=total, next_cursor=more)
        text = found.json()
        return Response(text[: 60 * hooked.half] if hooked.half else text, media_type="application/json")

    async def info(self, request: Request) -> Response:
        name = request.path_params["name"]
        async with self.engine.hooked("info"):
            if name in self.failed:
                return self.answer(self.failure(name))
            answer = self.answer(self.shown(self.named(name)))
            if not self.stuck:
                self.starting.discard(name)
        return answer

    async def delete(self, request: Request) -> Response:
        name = request.path_params["name"]
        async with self.engine.hooked("delete"):
            if self.failed.pop(name, None) is None:
                box = self.named(name)
                self.starting.discard(name)
                self.shares = {secret: found for secret, found in self.shares.items() if found[1] is not box}
                await self.engine.delete(name)
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        box = self.named(request.path_params["name"])
        await box.pause()
        return self.answer(self.shown(box))

    async def resume(self, request: Request) -> Response:
        box = self.named(request.path_params["name"])
        await box.resume()
        return self.answer(self.shown(box))

    # ------------------------------------------------------------------------------------------ commands, files

    async def exec(self, request: Request) -> Response:
        box = self.named(request.path_params["name"])
        asked = check(await request.json(), EXEC, ("command",))
        self.execs.append(asked)
        async with self.engine.hooked("exec"):
            env = {**box.data["env"], **(asked.get("env") or {})}
            try:
                proc = await box.exec(
                    asked["command"], env=env, cwd=asked.get("workdir"), user=asked.get("user") or box.image.user
                )
            except OSError as error:
                raise Problem(400, "COMMAND_NOT_FOUND", f"{error.filename}: {error.strerror}") from None
            id = f"exec-{secrets.token_hex(8)}"
            self.results[id] = {"status": "running", "stdout": "", "stderr": "", "truncated": False}
            self.engine.keep(self.collect(id, proc))
        return self.answer(ExecResponse(exec_id=id, sandbox_id=box.data["id"], status="running"), 202)

    async def collect(self, id: str, proc: Any) -> None:
        said: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

        async def read(name: str, stream: Any) -> None:
            async for data in stream:
                said[name] += data

        reading = asyncio.gather(read("stdout", proc.stdout), read("stderr", proc.stderr))
        code = await proc.wait()
        # What was left in the background may hold the pipes: what is there now is all there is.
        await asyncio.wait({reading}, timeout=0.1)
        reading.cancel()
        result = self.results[id]
        for name, data in said.items():
            result["truncated"] = result["truncated"] or len(data) > self.output_limit
            result[name] = bytes(data[: self.output_limit]).decode("utf-8", "replace")
        result |= {"status": "completed" if code == 0 else "failed", "exit_code": code}

    async def result(self, request: Request) -> Response:
        self.named(request.path_params["name"])
        id = request.path_params["id"]
        async with self.engine.hooked("result"):
            if id not in self.results:
                raise Problem(404, "RESOURCE_NOT_FOUND", f"no command {id}")
        return self.answer(ExecResultResponse(exec_id=id, **self.results[id]))

    async def upload(self, request: Request) -> Response:
        box, path = self.named(request.path_params["name"]), request.query_params.get("path", "")
        if set(request.query_params) != {"path"} or not path.startswith("/"):
            raise Problem(400, "INVALID_REQUEST", "path is required")
        async with request.form() as form:
            file = form.get("file")
            if file is None or isinstance(file, str):
                raise Problem(400, "INVALID_REQUEST", "file is required")
            data = await file.read()
        try:
            await box.write(path, data, mode=0o644)
        except OSError as error:
            raise Problem(400, "FILE_OPERATION_ERROR", str(error)) from None
        return self.answer(FileUploadStatusResponse(status="uploaded"))

    async def download(self, request: Request) -> Response:
        box, path = self.named(request.path_params["name"]), request.query_params.get("path", "")
        try:
            return Response(await box.read(path), media_type="application/octet-stream")
        except OSError as error:
            raise Problem(404, "FILE_NOT_FOUND", str(error)) from None

    # -------------------------------------------------------------------------------------------------- shares

    async def share(self, request: Request) -> Response:
        box = self.named(request.path_params["name"])
        asked = check(await request.json(), {"port": int, "ttl_seconds": int}, ("port",))
        async with self.engine.hooked("endpoint"):
            if not 1 <= asked["port"] <= 65535:
                raise Problem(400, "INVALID_REQUEST", "port: 1 to 65535")
            secret, now = secrets.token_urlsafe(18), self.engine.clock.now()
            share = ShareResponse(
                share_id=f"sh_{secrets.token_hex(6)}",
                port=asked["port"],
                url=f"{self.base}/s/{secret}",
                created_at=iso(now),
                expires_at=iso(now + asked.get("ttl_seconds", 86_400)),
            )
            self.shares[secret] = (share, box)
        return self.answer(share, 201)

    async def unshare(self, request: Request) -> Response:
        box, id = self.named(request.path_params["name"]), request.path_params["id"]
        for secret, (share, owner) in self.shares.items():
            if owner is box and share.share_id == id:
                del self.shares[secret]
                return Response(status_code=204)
        raise Problem(404, "RESOURCE_NOT_FOUND", f"no share {id}")

    def revoke(self, box: Box) -> None:
        """Every share of a box ends."""
        self.shares = {secret: found for secret, found in self.shares.items() if found[1] is not box}

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        if head.path.startswith(("/control/", "/compute/")):
            return None
        if not head.path.startswith("/s/"):
            return Refusal(401, {}, {"code": "AUTH_REQUIRED", "message": "a session token is needed"})
        secret, _, rest = head.target[len("/s/") :].partition("/")
        found = self.shares.get(secret)
        if found is None or found[1].state == "stopped":
            return Refusal(404, {}, {"code": "NOT_FOUND", "message": "no such share"})
        share, box = found
        if box.state != "running":
            return Refusal(503, {}, {"code": "SANDBOX_INVALID_STATE", "message": "the sandbox is paused"})
        return PortRoute(box, share.port, path=f"/{rest}", token=share.share_id)


def iso(seconds: float) -> str:
    """As the vendor writes times."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
