"""The control plane of Daytona: sandboxes, and the preview proxy. Strict by the SDK's own models.

Shapes come from the generated models and what the SDK's code says of them. UNVERIFIED, since no page or SDK says it:
which words and status an account limit has (403, "Total CPU limit exceeded"), that a taken name and a change of state
in progress are 409, the envelope around an error's ``message``, and how fast a name is free again.
The vendor's preview URL is ``https://{port}-{id}.{domain}``; names below 127.0.0.1 do not resolve here, so the label is
the first segment of a path (a Host header of the vendor's form is understood too).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import daytona_api_client_async as sdk
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Box, BoxGone, Face, PortRoute, QuotaReached, Refusal, RequestHead
from tests.emulators.faces.daytona_snapshots import Snapshots
from tests.emulators.faces.daytona_toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from tests.emulators.engine import Engine

KEY = "dtn_emulated_0123456789abcdef"
JWT, ORGANIZATION = "eyJ-emulated-jwt-0123456789", "org-11111111-2222"
TOKEN_HEADER = "x-daytona-preview-token"
AUTO_STOP = 15


class Problem(Exception):
    """An answer that is a refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class DaytonaFace(Face):
    """One organisation.

    Attributes:
        tokens: Preview token by box id.
        changing: Ids of sandboxes between two states, which refuse changes.
        page: Most rows of one page of a listing.
        bodies: Bodies of creates, in order.
        headers: Heads of API requests that came, as pairs of path and headers.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.base = ""
        self.tokens: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.changing: set[str] = set()
        self.page = 100
        self.issued = 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        self.snapshots, self.toolbox = Snapshots(self), Toolbox(self)
        one = "/api/sandbox/{id}"
        routes = [
            ("POST", "/api/sandbox", self.create),
            ("GET", "/api/sandbox", self.list),
            ("GET", one, self.info),
            ("DELETE", one, self.delete),
            ("POST", one + "/ttl/{minutes}", self.ttl),
            ("POST", one + "/pause", self.pause),
            ("POST", one + "/start", self.start),
            ("POST", one + "/snapshot", self.snapshot),
            ("GET", one + "/ports/{port}/preview-url", self.preview),
            *self.snapshots.routes(),
            *self.toolbox.routes(),
        ]
        self.app = Starlette(
            routes=[
                *(Route(path, self.guard(handler), methods=[method]) for method, path, handler in routes),
                *(
                    Route("/s3/{bucket}/{key:path}", handler, methods=[method])
                    for method, handler in self.snapshots.storage()
                ),
            ]
        )

    # ------------------------------------------------------------------------------------------------- envelope

    def guard(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            self.base = f"{request.url.scheme}://{request.headers['host']}"
            self.headers.append((request.url.path, dict(request.headers)))
            shape = self.toolbox.refusal if request.url.path.startswith("/toolbox") else refusal
            try:
                self.credentials(request)
                return await handler(request)
            except FakeApiError as error:
                headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
                return shape(request, error.status or 500, error.message, headers)
            except Problem as error:
                return shape(request, error.status, error.message)
            except (ValidationError, ValueError) as error:
                return shape(request, 400, str(error))

        return guarded

    def credentials(self, request: Request) -> None:
        shown = request.headers.get("authorization")
        if shown == f"Bearer {KEY}":
            return
        if shown == f"Bearer {JWT}" and request.headers.get("x-daytona-organization-id") == ORGANIZATION:
            return
        raise Problem(401, "Unauthorized")

    async def body(self, request: Request, model: Any) -> Any:
        """The body as the SDK's own model takes it; what that does not know is refused."""
        asked = json.loads(await request.body())
        found = model.from_dict(asked)
        if found is None or found.additional_properties:
            raise Problem(400, f"property {next(iter(found.additional_properties), '')} should not exist")
        return found

    def box(self, request: Request) -> Box:
        """By id or name."""
        wanted = request.path_params["id"]
        for box in self.engine.visible():
            if wanted in (box.id, box.data["name"]):
                return box
        raise Problem(404, f"Sandbox with ID or name {wanted} not found")

    def settled(self, box: Box) -> None:
        if box.id in self.changing:
            raise Problem(409, "Sandbox state change in progress")

    # ------------------------------------------------------------------------------------------------ sandboxes

    async def create(self, request: Request) -> Response:
        asked = await self.body(request, sdk.CreateSandbox)
        self.bodies.append(json.loads(await request.body()))
        self.check(asked)
        await self.engine.hook("create", "before", labels=asked.labels or {})
        if any(box.data["name"] == asked.name for box in self.engine.boxes.values()):
            raise Problem(409, f"Sandbox with name {asked.name} already exists")
        record = self.snapshots.wanted(asked.snapshot or "default")
        id = str(uuid.uuid4())
        idle = AUTO_STOP if asked.auto_stop_interval is None else asked.auto_stop_interval
        stays = asked.auto_delete_interval != 0
        data = {
            "name": asked.name or id,
            "snapshot": record.name,
            "public": bool(asked.public),
            "network": (bool(asked.network_block_all), asked.network_allow_list, asked.domain_allow_list),
            "auto": (idle, asked.auto_delete_interval),
            "env": dict(asked.env or {}),
            "sizes": record.sizes,
            "target": asked.target or "us",
        }
        try:
            await self.engine.create(
                record.image,
                id=id,
                run_image=False,
                argv=record.entrypoint or None,
                env=asked.env or {},
                labels=asked.labels or {},
                ttl_s=asked.ttl_minutes * 60 if asked.ttl_minutes else None,
                idle_s=idle * 60 if idle else None,
                on_idle="stop" if stays else "delete",
                data=data,
            )
        except QuotaReached:
            raise Problem(403, f"Total CPU limit exceeded. Maximum allowed: {self.engine.quota}.") from None
        self.states[id] = "creating"
        await self.engine.hook("create", "after")
        box = self.engine.boxes.get(id)
        if box is None:
            raise Problem(404, "it is gone already")
        return self.told(box)

    def check(self, asked: Any) -> None:
        if asked.build_info is not None or any((asked.cpu, asked.memory, asked.disk)):
            raise Problem(400, "Cannot specify Sandbox resources when using a snapshot")
        if asked.auto_stop_interval and asked.auto_pause_interval:
            raise Problem(400, "autoStopInterval and autoPauseInterval are mutually exclusive")
        if asked.ttl_minutes is not None and asked.ttl_minutes < 0:
            raise Problem(400, "ttlMinutes must not be less than 0")
        if asked.network_block_all and (asked.network_allow_list or asked.domain_allow_list):
            raise Problem(400, "networkBlockAll excludes allow lists")

    async def list(self, request: Request) -> Response:
        query = dict(request.query_params)
        if unknown := set(query) - {"labels", "cursor", "limit"}:
            raise Problem(400, f"property {unknown.pop()} should not exist")
        limit = int(query.get("limit", "100"))
        if not 1 <= limit <= 200:
            raise Problem(400, "limit must not be greater than 200")
        wanted = json.loads(query.get("labels", "{}"))
        op = "find" if "oe-key" in wanted else "list"
        hooked = await self.engine.hook(op, "before")
        rows = sorted(
            (box for box in self.engine.visible() if wanted.items() <= box.labels.items()), key=lambda box: box.id
        )
        rows = [box for box in rows if box.id > query.get("cursor", "")]
        page = rows[: min(limit, self.page)]
        await self.engine.hook(op, "after")
        cursor = page[-1].id if len(page) < len(rows) else None
        found = sdk.ListSandboxesResponse(
            items=[sdk.SandboxListItem.model_validate(self.facts(box)) for box in page], next_cursor=cursor
        )
        text = json.dumps(found.to_dict() | {"nextCursor": cursor})
        return Response(text[: 60 * hooked.half] if hooked.half else text, media_type="application/json")

    async def info(self, request: Request) -> Response:
        by_id = request.path_params["id"] in self.engine.boxes
        async with self.engine.hooked("info" if by_id else "find"):
            box = self.box(request)
        answer = self.told(box)
        if self.states.get(box.id) in ("creating", "resuming"):
            del self.states[box.id]
        return answer

    async def delete(self, request: Request) -> Response:
        async with self.engine.hooked("delete"):
            box = self.box(request)
            self.settled(box)
            self.states[box.id] = "destroying"
            answer = self.told(box)
            self.engine.keep(self.engine.delete(box.id))
        return answer

    async def ttl(self, request: Request) -> Response:
        async with self.engine.hooked("extend"):
            box, minutes = self.box(request), int(request.path_params["minutes"])
            box.set_ttl(minutes * 60 if minutes else None)
        return self.told(box)

    async def pause(self, request: Request) -> Response:
        box = self.box(request)
        self.settled(box)
        try:
            await box.pause()
        except BoxGone:
            raise Problem(400, f"Sandbox is not started: {box.state}") from None
        return self.told(box)

    async def start(self, request: Request) -> Response:
        box = self.box(request)
        self.settled(box)
        try:
            await box.resume()
        except BoxGone:
            raise Problem(400, f"Sandbox is not in a state to be started: {box.state}") from None
        self.tokens.pop(box.id, None)
        self.states[box.id] = "resuming"
        return self.told(box)

    async def snapshot(self, request: Request) -> Response:
        box, asked = self.box(request), await self.body(request, sdk.CreateSandboxSnapshot)
        self.settled(box)
        self.states[box.id] = "snapshotting"
        answer = self.told(box)

        async def take() -> None:
            await asyncio.sleep(0.1)
            image = await self.engine.snapshot(box, f"daytona/{asked.name}")
            self.snapshots.add(asked.name, image, box.data["sizes"], source=box.id)
            self.states.pop(box.id, None)

        self.engine.keep(take())
        return answer

    async def preview(self, request: Request) -> Response:
        async with self.engine.hooked("endpoint"):
            box, port = self.box(request), int(float(request.path_params["port"]))
        if not 1 <= port <= 65535:
            raise Problem(400, "port must be between 1 and 65535")
        if box.state != "running":
            raise Problem(400, "Sandbox is not started")
        if box.id not in self.tokens:
            self.issued += 1
            self.tokens[box.id] = f"preview-{self.issued:04d}-{secrets.token_hex(8)}"
        url = f"{self.base}/preview/{port}-{box.id}"
        return JSONResponse(sdk.PortPreviewUrl(sandbox_id=box.id, url=url, token=self.tokens[box.id]).to_dict())

    # -------------------------------------------------------------------------------------------------- answers

    def told(self, box: Box) -> Response:
        return JSONResponse(sdk.Sandbox.model_validate(self.facts(box)).to_dict())

    def facts(self, box: Box) -> dict[str, Any]:
        data = box.data
        blocked, cidrs, hosts = data["network"]
        plain = {"running": "started", "paused": "paused", "stopped": "stopped"}[box.state]
        return {
            "id": box.id,
            "organization_id": ORGANIZATION,
            "name": data["name"],
            "snapshot": data["snapshot"],
            "user": box.user or "root",
            "env": data["env"],
            "labels": box.labels,
            "public": data["public"],
            "network_block_all": blocked,
            "network_allow_list": cidrs,
            "domain_allow_list": hosts,
            "kvm": False,
            "target": data["target"],
            **data["sizes"],
            "state": sdk.SandboxState(self.states.get(box.id, plain)),
            "auto_stop_interval": data["auto"][0],
            "auto_delete_interval": data["auto"][1],
            "auto_destroy_at": iso(box.ends_at),
            "created_at": iso(box.created_at),
            "toolbox_proxy_url": f"{self.base}/toolbox",
        }

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        label, rest = head.host.partition(".")[0], head.target
        if "-" not in label or not label.partition("-")[0].isdigit():
            if not head.path.startswith("/preview/"):
                return None
            label, _, rest = head.target[len("/preview/") :].partition("/")
            rest = f"/{rest}"
        port, _, id = label.partition("-")
        box = self.engine.boxes.get(id)
        if box is None or not port.isdigit():
            return Refusal(404, {}, {"statusCode": 404, "message": "Sandbox not found"})
        token = head.get(TOKEN_HEADER)
        allowed = token and token == self.tokens.get(id)
        if not allowed and not box.data["public"] and head.get("authorization") != f"Bearer {KEY}":
            return Refusal(401, {}, {"statusCode": 401, "message": "Unauthorized"})
        if box.state != "running":
            return Refusal(400, {}, {"statusCode": 400, "message": "no IP address found. Is the Sandbox started?"})
        return PortRoute(box, int(port), path=rest, token=token[:12] or "key", strip=frozenset({TOKEN_HEADER}))


def iso(seconds: float | None) -> str | None:
    """As the vendor writes times."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refusal(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """The API's envelope."""
    body = {"statusCode": status, "message": message, "path": request.url.path, "source": "DAYTONA_API"}
    return JSONResponse(body, status, headers)
