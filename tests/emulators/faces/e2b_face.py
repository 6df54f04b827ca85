"""E2B's control plane, as its SDK 2.63.0 speaks to it; replies are the SDK's own models.

Fields, paths, headers and the shape of errors are from the SDK. What it does not tell is marked UNVERIFIED.
"""

from __future__ import annotations

import datetime
import importlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, unquote

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Box, Face, PortRoute, QuotaReached, Refusal, RequestHead
from tests.emulators.faces.e2b_builder import Builder, Template
from tests.emulators.faces.e2b_envd import Envd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from tests.emulators.engine import Engine

KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
DOMAIN = "e2b.test"
PAGE = 2
"""Sandboxes on a page at most, so that every listing is paged; the vendor's own bound is 100."""
LONGEST_S = 86_400
_HOST = re.compile(r"(?P<port>[0-9]{1,5})-(?P<id>[a-z0-9]+)\.(?P<domain>.+)\Z")
_IDEMPOTENCY = re.compile(r"[a-z0-9-]{1,255}\Z")

Shape = dict[str, "type | tuple[type, ...]"]


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error in the vendor's shape."""
    return JSONResponse({"code": status, "message": message}, status, headers)


class E2bFace(Face):
    """Control plane here; `Envd` is the daemon in sandboxes, `Builder` makes templates.

    Attributes:
        models: The SDK's REST models.
        boundary: Header of the sandbox id on requests to the daemon.
        traffic: Header of the token for ports.
    """

    root: ClassVar[str] = "e2b"
    key: ClassVar[str] = KEY
    domain: ClassVar[str] = DOMAIN
    boundary: ClassVar[str] = "e2b-sandbox-id"
    traffic: ClassVar[str] = "e2b-traffic-access-token"
    create_path: ClassVar[str] = "/v2/sandboxes"
    connect_path: ClassVar[str] = "/v2/sandboxes/{id}/connect"
    create_shape: ClassVar[Shape] = {
        "templateID": str,
        "timeout": int,
        "autoPause": bool,
        "autoPauseMemory": bool,
        "autoResume": dict,
        "allow_internet_access": bool,
        "network": dict,
        "metadata": dict,
        "envVars": dict,
        "mcp": (dict, type(None)),
        "iam": dict,
        "volumeMounts": list,
    }
    network_shape: ClassVar[Shape] = {
        "allowPublicTraffic": (bool, type(None)),
        "allowOut": list,
        "denyOut": list,
        "dnsServers": list,
        "egressProxy": dict,
        "maskRequestHost": str,
        "httpsPorts": list,
        "rules": dict,
    }
    snapshot_shape: ClassVar[Shape] = {"name": str, "memory": bool}
    connect_shape: ClassVar[Shape] = {"timeout": int, "memory": bool}

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.models: Any = importlib.import_module(f"{self.root}.api.client.models")
        self.snapshots: dict[str, list[str]] = {}
        self.envd = Envd(self)
        self.builder = self.make_builder()
        one = "/sandboxes/{id}"
        self.app = Starlette(
            routes=[
                *self.envd.routes(),
                *self.builder.routes(),
                Route(self.create_path, self.guard(self.create), methods=["POST"]),
                Route("/v2/sandboxes", self.guard(self.list), methods=["GET"]),
                Route(self.connect_path, self.guard(self.connect), methods=["POST"]),
                Route(one, self.guard(self.info), methods=["GET"]),
                Route(one, self.guard(self.delete), methods=["DELETE"]),
                Route(one + "/timeout", self.guard(self.timeout), methods=["POST"]),
                Route(one + "/pause", self.guard(self.pause), methods=["POST"]),
                Route(one + "/snapshots", self.guard(self.snapshot), methods=["POST"]),
                Route("/snapshots", self.guard(self.list_snapshots), methods=["GET"]),
            ]
        )

    def make_builder(self) -> Builder:
        """What makes templates."""
        return Builder(self)

    # ------------------------------------------------------------------------------------------------------- wire

    def guard(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """``handler`` behind the key, with errors in the vendor's shape."""

        async def guarded(request: Request) -> Response:
            if request.headers.get("x-api-key") != self.key:
                return refusal(401, "Invalid API key, please visit the dashboard to get one")
            try:
                return await handler(request)
            except FakeApiError as error:
                headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
                if error.message.startswith("<"):  # something else than the service answers
                    return Response(error.message, error.status, headers, media_type="text/html")
                return refusal(error.status or 500, error.message, headers)

        return guarded

    async def body(self, request: Request, shape: Shape, *needed: str) -> dict[str, Any]:
        """The JSON body, checked field by field; what is None was left out."""
        try:
            asked = json.loads(await request.body() or b"{}")
        except ValueError:
            raise FakeApiError(400, "Error parsing body: invalid JSON") from None
        if not isinstance(asked, dict):
            raise FakeApiError(400, "Error parsing body: an object is expected")
        checked(asked, shape, "")
        for name in needed:
            if name not in asked:
                raise FakeApiError(400, f'Error at "/{name}": property "{name}" is missing')
        return asked

    def box(self, request: Request) -> Box:
        """The sandbox of the path."""
        id = request.path_params["id"]
        box = self.engine.boxes.get(id)
        if box is None or box not in self.engine.visible():
            raise FakeApiError(404, f"sandbox \"{id}\" doesn't exist or you don't have access to it")
        return box

    def seconds(self, asked: dict[str, Any], default: int) -> int:
        """The timeout asked for."""
        seconds = int(asked.get("timeout", default))
        if seconds < 0 or seconds > LONGEST_S:
            raise FakeApiError(400, f"Timeout cannot be greater than {LONGEST_S // 3600} hours")
        return seconds

    # ----------------------------------------------------------------------------------------------------- create

    async def create(self, request: Request) -> Response:
        """One sandbox. The idempotency key is looked at and not relied upon: its effect is UNVERIFIED."""
        asked = await self.body(request, self.create_shape, "templateID")
        checked(asked.get("network", {}), self.network_shape, "network/")
        for name in ("metadata", "envVars"):
            if not all(isinstance(text, str) for text in asked.get(name, {}).values()):
                raise FakeApiError(400, f'Error at "/{name}": value must be a string')
        network = asked.get("network", {})
        hosts = [item for item in network.get("allowOut", []) if re.search(r"[a-zA-Z]", item)]
        if hosts and "0.0.0.0/0" not in network.get("denyOut", []):
            raise FakeApiError(400, "When specifying allowed domains, you must include 'ALL_TRAFFIC' in deny out")
        if not _IDEMPOTENCY.match(request.headers.get("idempotency-key", "none")):
            raise FakeApiError(400, "Invalid Idempotency-Key")
        seconds = self.seconds(asked, 300)
        await self.engine.hook("create", "before", labels=asked.get("metadata", {}))
        template = self.template(asked["templateID"])
        try:
            box = await self.make(asked, template, seconds)
        except QuotaReached:
            message = f"you have reached the maximum number of concurrent sandboxes ({self.engine.quota})"
            raise FakeApiError(429, message) from None
        await self.engine.hook("create", "after")
        return JSONResponse(self.shown(box), 201)

    async def make(self, asked: dict[str, Any], template: Template, seconds: int) -> Box:
        """The box behind it: the template's start command runs, the image's own never."""
        image = template.image
        assert image is not None
        public = asked.get("network", {}).get("allowPublicTraffic", True) is not False
        data = {
            "template": template,
            "env": asked.get("envVars", {}),
            "internet": asked.get("allow_internet_access", True),
            "network": asked.get("network", {}),
            "envd": f"ea_{secrets.token_hex(16)}",
            "traffic": None if public else f"ta_{secrets.token_hex(16)}",
            "processes": {},
        }
        box = await self.engine.create(
            image,
            id=f"i{secrets.token_hex(10)}",
            argv=["/bin/sh", "-c", template.start_cmd] if template.start_cmd else None,
            run_image=False,
            labels=asked.get("metadata", {}),
            ttl_s=seconds,
            on_ttl="pause" if asked.get("autoPause") else "delete",
            data=data,
        )
        if image.workdir:  # a folder of the image, which the engine makes for what it starts itself
            await box.mkdir(image.workdir)
        return box

    def template(self, name: str) -> Template:
        """A template that can be booted."""
        found = self.builder.find(name)
        if found is None:
            raise FakeApiError(404, f"template '{name}' not found")
        if found.image is None:
            raise FakeApiError(404, f"tag 'default' does not exist for template '{name}'")
        return found

    def shown(self, box: Box) -> dict[str, Any]:
        """The reply to create and connect."""
        fields = {
            "template_id": box.data["template"].id,
            "sandbox_id": box.id,
            "client_id": "6532622b",
            "envd_version": "0.6.4",
            "envd_access_token": box.data["envd"],
            "domain": self.domain,
        }
        if box.data["traffic"] is not None:
            fields["traffic_access_token"] = box.data["traffic"]
        return dict(self.models.Sandbox(**fields).to_dict())

    # ---------------------------------------------------------------------------------------------------- look-up

    async def list(self, request: Request) -> Response:
        """Running and paused, page by page."""
        query = request.query_params
        known = {"metadata", "state", "limit", "nextToken", "order", "startedAfter", "template"}
        if unknown := set(query) - known:
            raise FakeApiError(400, f"unknown parameters {sorted(unknown)}")
        # Each name and value is quoted once more than the query itself.
        wanted = {unquote(name): unquote(text) for name, text in parse_qsl(query.get("metadata", ""))}
        states = query.get("state", "running,paused").split(",")
        hooked = await self.engine.hook("find" if "oe-key" in wanted else "list", "before")
        boxes = [box for box in self.engine.visible() if box.state in states and wanted.items() <= box.labels.items()]
        boxes.sort(key=lambda box: (box.created_at, box.id), reverse=True)
        start = int(query.get("nextToken") or 0)
        page = boxes[start : start + min(PAGE, int(query.get("limit", 100)))]
        await self.engine.hook("find" if "oe-key" in wanted else "list", "after")
        more = start + len(page) < len(boxes)
        headers = {"x-next-token": str(start + len(page))} if more else {}
        text = json.dumps([self.listed(box) for box in page])
        if hooked.half is not None:
            text = text[: 200 * hooked.half]
        return Response(text, media_type="application/json", headers=headers)

    def facts(self, box: Box) -> dict[str, Any]:
        """What listing and info share."""
        template = box.data["template"]
        ends = box.ends_at if box.ends_at is not None else box.created_at
        return {
            "template_id": template.id,
            "sandbox_id": box.id,
            "client_id": "6532622b",
            "started_at": datetime.datetime.fromtimestamp(box.created_at, datetime.timezone.utc),
            "end_at": datetime.datetime.fromtimestamp(ends, datetime.timezone.utc),
            "cpu_count": template.cpus,
            "memory_mb": template.memory_mb,
            "disk_size_mb": 10_240,
            "state": self.models.SandboxState(box.state),
            "envd_version": "0.6.4",
            "metadata": dict(box.labels),
        }

    def listed(self, box: Box) -> dict[str, Any]:
        """One row of a listing."""
        return dict(self.models.ListedSandbox(**self.facts(box)).to_dict())

    async def info(self, request: Request) -> Response:
        """One sandbox."""
        async with self.engine.hooked("info"):
            box = self.box(request)
        network = self.models.SandboxNetworkConfig.from_dict(dict(box.data["network"]))
        detail = self.models.SandboxDetail(
            **self.facts(box),
            envd_access_token=box.data["envd"],
            domain=self.domain,
            network=network,
            allow_internet_access=box.data["internet"],
        )
        return JSONResponse(detail.to_dict())

    # ------------------------------------------------------------------------------------------------------- life

    async def delete(self, request: Request) -> Response:
        """Kill it."""
        async with self.engine.hooked("delete"):
            await self.engine.delete(self.box(request).id)
        return Response(status_code=204)

    async def timeout(self, request: Request) -> Response:
        """Set the end. That a paused sandbox has none to set is UNVERIFIED."""
        asked = await self.body(request, {"timeout": int}, "timeout")
        seconds = self.seconds(asked, 0)
        async with self.engine.hooked("extend"):
            box = self.box(request)
            if box.state != "running":
                raise FakeApiError(404, f'sandbox "{box.id}" not found')
            box.set_ttl(seconds)
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        """Freeze it; every stream of the daemon breaks."""
        await self.body(request, {"memory": bool, "requireHealthyGuest": bool})
        box = self.box(request)
        if box.state != "running":
            raise FakeApiError(409, f"sandbox {box.id} is already paused")
        await box.pause()
        box.ends_at = None
        await self.envd.cut(box)
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        """Resume it, or tell a running one's tokens; its end only moves away."""
        asked = await self.body(request, self.connect_shape)
        seconds, box = self.seconds(asked, 300), self.box(request)
        resumed = box.state == "paused"
        if resumed:
            await box.resume()
        if resumed or (box.ends_at or 0.0) < self.engine.clock.now() + seconds:
            box.set_ttl(seconds)
        return JSONResponse(self.shown(box), 201 if resumed else 200)

    async def snapshot(self, request: Request) -> Response:
        """Its files. A snapshot with memory would boot with its processes, which no box can: refused here."""
        asked = await self.body(request, self.snapshot_shape)
        if asked.get("memory", self.root == "e2b"):
            raise FakeApiError(400, "this emulator has no memory snapshots")
        box = self.box(request)
        name = asked.get("name", "")
        if name and not re.fullmatch(r"[a-z0-9_-]+", name):
            raise FakeApiError(400, "invalid snapshot name")
        template = self.builder.keep(name or f"t{secrets.token_hex(8)}", box.data["template"])
        template.image = await self.engine.snapshot(box, template.id)
        id = f"{name or template.id}:default"
        self.snapshots[id] = [f"team-slug/{id}"] if name else []
        template.names.append(id)
        return JSONResponse(self.models.SnapshotInfo(**self.snapshot_facts(id)).to_dict(), 201)

    def snapshot_facts(self, id: str) -> dict[str, Any]:
        """Fields of a snapshot."""
        return {"snapshot_id": id, "names": self.snapshots[id]}

    async def list_snapshots(self, request: Request) -> Response:
        """All of them, on one page."""
        found = [id for id in self.snapshots if self.builder.find(id) is not None]
        return JSONResponse([self.models.SnapshotInfo(**self.snapshot_facts(id)).to_dict() for id in found])

    # ------------------------------------------------------------------------------------------------------ ports

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        """``PORT-ID.DOMAIN``; private ones want the token. Texts and statuses are UNVERIFIED but for 403 and 502."""
        match = _HOST.match(head.host)
        if match is None or match["domain"] != self.domain:
            return None
        box, port = self.engine.boxes.get(match["id"]), int(match["port"])
        if box is None or box.state != "running":
            return Refusal(502, {}, {"sandboxId": match["id"], "message": "The sandbox was not found", "code": 502})
        token = box.data["traffic"]
        if token is not None and head.get(self.traffic) != token:
            message = f"Sandbox is secured with traffic access token. Token header '{self.traffic}' is missing or wrong"
            return Refusal(403, {}, {"sandboxId": box.id, "message": message, "code": 403})
        return PortRoute(box, port, token=(token or "")[:12], strip=frozenset({self.traffic}))

    def unreachable(self, head: RequestHead, route: PortRoute, error: Exception) -> Refusal:
        """Nobody listens there."""
        text = "The sandbox is running but port is not open"
        return Refusal(502, {}, {"sandboxId": route.box.id, "message": text, "port": route.port, "code": 502})


def checked(asked: dict[str, Any], shape: Shape, path: str) -> None:
    """Refuse unknown and mistyped fields."""
    for name, value in asked.items():
        if name not in shape:
            raise FakeApiError(400, f'Error at "/{path}{name}": property "{name}" is unsupported')
        wanted = shape[name]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is int):
            raise FakeApiError(400, f'Error at "/{path}{name}": value has the wrong type')
