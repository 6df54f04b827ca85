"""The control plane of Runloop: devboxes, their network policies, and the tunnel proxy.

Shapes come from the SDK's views and parameter types, and every answer is validated by the SDK's own models. UNVERIFIED,
since no page or SDK says it: the envelope of errors (``message``), that an account's limit on devboxes is 429, what
calls on a devbox that was shut down answer (400), what the tunnel's proxy answers to a wrong token (401) and to an
unknown key (404), and whether a login shell still has the image's ENV (not here).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from runloop_api_client import types as sdk
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Face, PortRoute, QuotaReached, Refusal
from tests.emulators.faces import runloop_shapes as shapes
from tests.emulators.faces.runloop_blueprints import Blueprints
from tests.emulators.faces.runloop_exec import Commands

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request

    from tests.emulators.engine import Box, Engine, RequestHead

B = TypeVar("B", bound=shapes.Body)

KEY = "ak_emulated_0123456789abcdef"
DOMAIN = "tunnel.127.0.0.1"
TOKEN_HEADER = "x-runloop-tunnel-authorization"
HOUR = 3600
HOLD_S = 30.0


class Problem(Exception):
    """An answer that is a refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class Devbox:
    """One devbox, kept after its end."""

    id: str
    box: Box
    asked: shapes.CreateDevbox
    status: str = "provisioning"
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    ended_ms: int | None = None


class RunloopFace(Face):
    """One account.

    Attributes:
        devboxes: By id, those that have ended too.
        policies: Network policies by id.
        page: Most rows of one page of a listing.
        bodies: Bodies of creates, in order.
        lists: Queries of listings of devboxes, in order.
        boots: Statuses that the next devboxes take instead of running, once each.
        hold_s: The longest that a question for a status is held.
        on_list: Called with the status of each listing, before it is answered.
        requests, paths: Ids of requests to create, and paths of all requests, in order.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.base = ""
        self.devboxes: dict[str, Devbox] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.page = 5000
        self.bodies: list[dict[str, Any]] = []
        self.lists: list[dict[str, str]] = []
        self.boots: list[str] = []
        self.hold_s = HOLD_S
        self.on_list: Callable[[str], None] = lambda status: None
        self.requests: list[str] = []
        self.paths: list[str] = []
        self.commands, self.blueprints = Commands(self), Blueprints(self)
        one = "/v1/devboxes/{id}"
        routes = [
            ("POST", "/v1/devboxes", self.create),
            ("GET", "/v1/devboxes", self.list),
            *self.blueprints.routes(),
            ("GET", one, self.info),
            ("POST", one + "/wait_for_status", self.wait),
            ("POST", one + "/shutdown", self.shutdown),
            *self.commands.routes(),
            ("POST", "/v1/network-policies", self.make_policy),
            ("GET", "/v1/network-policies", self.list_policies),
            ("POST", "/v1/network-policies/{id}/delete", self.drop_policy),
        ]
        self.app = Starlette(
            routes=[
                *(Route(path, self.guard(handler), methods=[method]) for method, path, handler in routes),
                Route("/storage/{id}", self.blueprints.put, methods=["PUT"]),
            ]
        )

    # ------------------------------------------------------------------------------------------------- envelope

    def guard(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            self.base = f"{request.url.scheme}://{request.headers['host']}"
            self.paths.append(request.url.path)
            try:
                if request.headers.get("authorization") != f"Bearer {KEY}":
                    raise Problem(401, "Invalid API key")
                return await handler(request)
            except FakeApiError as error:
                headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
                return refusal(error.status or 500, error.message, headers)
            except Problem as error:
                return refusal(error.status, error.message)
            except (ValidationError, ValueError) as error:
                return refusal(400, str(error))

        return guarded

    async def body(self, request: Request, model: type[B]) -> B:
        """The body; what the vendor's parameters do not know is refused."""
        return model.model_validate_json(await request.body() or b"{}")

    def find(self, id: str) -> Devbox:
        """A devbox, in any state; one that is late is not there yet."""
        devbox = self.devboxes.get(id)
        if devbox is None or (id in self.engine.boxes and devbox.box not in self.engine.visible()):
            raise Problem(404, f"Devbox {id} not found")
        return devbox

    def running(self, id: str) -> Devbox:
        """A devbox that takes commands."""
        devbox = self.find(id)
        if self.status(devbox) != "running":
            raise Problem(400, f"Devbox {id} is not running: {self.status(devbox)}")
        return devbox

    def status(self, devbox: Devbox) -> str:
        """As its view says."""
        return devbox.status if devbox.id in self.engine.boxes or devbox.status == "failure" else "shutdown"

    # ------------------------------------------------------------------------------------------------- devboxes

    async def create(self, request: Request) -> Response:
        asked = await self.body(request, shapes.CreateDevbox)
        self.bodies.append(json.loads(await request.body()))
        self.requests.append(request.headers.get("x-request-id", ""))
        await self.engine.hook("create", "before", labels=asked.metadata)
        launch = asked.launch_parameters
        if launch.network_policy_id is not None and launch.network_policy_id not in self.policies:
            raise Problem(400, f"Network policy {launch.network_policy_id} not found")
        image = self.blueprints.source(asked)
        id = f"dbx_{secrets.token_hex(8)}"
        try:
            box = await self.engine.create(
                image,
                id=id,
                run_image=False,
                labels=asked.metadata,
                ttl_s=launch.keep_alive_time_seconds or HOUR,
            )
        except QuotaReached:
            raise Problem(429, f"Too many devboxes are running: {self.engine.quota}") from None
        box.env = dict(asked.environment_variables)
        if image.workdir:  # a folder of the image that no layer of the engine's holds
            await box.mkdir(image.workdir)
        self.devboxes[id] = Devbox(id, box, asked)
        await self.engine.hook("create", "after")
        return self.told(self.devboxes[id])

    async def list(self, request: Request) -> Response:
        query = self.paging(request, "status")
        self.lists.append(query)
        self.on_list(query.get("status", ""))
        # Nothing in a request says what is looked for: by key and for gc are one call here, and one request for each
        # status. A listing is one that has something to list.
        await self.engine.hook("find", "before")
        visible = self.engine.visible()
        rows = [d for d in self.devboxes.values() if d.id not in self.engine.boxes or d.box in visible]
        rows = [d for d in rows if query.get("status", self.status(d)) == self.status(d)]
        half = (await self.engine.hook("list", "before")).half if rows else None
        await self.engine.hook("find", "after")
        if rows:
            await self.engine.hook("list", "after")
        answer = self.rows("devboxes", sdk.DevboxListView, [self.view(d) for d in rows], query)
        text = bytes(answer.body)
        return Response(text[: 60 * half] if half else text, media_type="application/json")

    def paging(self, request: Request, *more: str) -> dict[str, str]:
        """The query of a listing."""
        query = dict(request.query_params)
        if unknown := set(query) - {"limit", "starting_after", "include_total_count", *more}:
            raise Problem(400, f"unknown parameter {unknown.pop()}")
        if not 1 <= int(query.get("limit", "20")) <= 5000:
            raise Problem(400, "limit must be at most 5000")
        return query

    def rows(self, name: str, model: Any, views: Iterable[dict[str, Any]], query: dict[str, str]) -> Response:
        """One page, newest first."""
        views = sorted(views, key=lambda view: (view["create_time_ms"], view["id"]), reverse=True)
        if after := query.get("starting_after"):
            ids = [view["id"] for view in views]
            if after not in ids:
                raise Problem(400, f"starting_after {after} not found")
            views = views[ids.index(after) + 1 :]
        shown = views[: min(self.page, int(query.get("limit", "20")))]
        return checked(model, {name: shown, "has_more": len(shown) < len(views), "total_count": None})

    async def info(self, request: Request) -> Response:
        async with self.engine.hooked("info"):
            devbox = self.find(request.path_params["id"])
        return self.told(devbox)

    async def wait(self, request: Request) -> Response:
        asked, devbox = await self.body(request, shapes.Wait), self.find(request.path_params["id"])
        await self.engine.hook("wait", "before")
        if devbox.status == "provisioning":
            devbox.status = self.boots.pop(0) if self.boots else "running"
        if self.status(devbox) not in asked.statuses:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(devbox.box.gone.wait(), min(asked.timeout_seconds or HOLD_S, self.hold_s))
            if self.status(devbox) not in asked.statuses:
                raise Problem(408, "Timed out waiting for the status")
        return self.told(devbox)

    async def shutdown(self, request: Request) -> Response:
        if set(request.query_params) - {"force"}:
            raise Problem(400, "unknown parameter")
        async with self.engine.hooked("delete"):
            devbox = self.find(request.path_params["id"])
            await self.engine.delete(devbox.id)
            devbox.status = "shutdown"
        return self.told(devbox)

    def told(self, devbox: Devbox) -> Response:
        return checked(sdk.DevboxView, self.view(devbox))

    def view(self, devbox: Devbox) -> dict[str, Any]:
        """As the API tells it."""
        asked, status, made = devbox.asked, self.status(devbox), int(devbox.box.created_at * 1000)
        ended = status in ("shutdown", "failure")
        mode = asked.tunnel.auth_mode or "open" if asked.tunnel else None
        return {
            "id": devbox.id,
            "name": asked.name,
            "status": status,
            "create_time_ms": made,
            "end_time_ms": made + 1 if ended else None,
            "capabilities": [],
            "launch_parameters": asked.launch_parameters.model_dump(exclude_none=True),
            "metadata": asked.metadata,
            "state_transitions": [{"status": status, "transition_time_ms": made}],
            "blueprint_id": asked.blueprint_id,
            "snapshot_id": asked.snapshot_id,
            "shutdown_reason": "api_shutdown" if status == "shutdown" else None,
            "failure_reason": "health_check_failed" if status == "failure" else None,
            "tunnel": mode
            and {
                "auth_mode": mode,
                "create_time_ms": made,
                "http_keep_alive": True,
                "wake_on_http": False,
                "tunnel_key": devbox.key,
                "auth_token": devbox.token if mode == "authenticated" else None,
            },
        }

    # ------------------------------------------------------------------------------------------------- policies

    async def make_policy(self, request: Request) -> Response:
        asked = await self.body(request, shapes.CreatePolicy)
        if asked.allow_all and (asked.allowed_hostnames or asked.allowed_cidrs):
            raise Problem(400, "allow_all excludes allow lists")
        id, now = f"npol_{secrets.token_hex(8)}", int(self.engine.clock.now() * 1000)
        egress = {
            "allow_all": asked.allow_all,
            "allowed_hostnames": asked.allowed_hostnames,
            "allowed_cidrs": [cidr.model_dump() for cidr in asked.allowed_cidrs],
            "allow_agent_gateway": False,
            "allow_devbox_to_devbox": asked.allow_all,
            "allow_mcp_gateway": False,
            "allow_runloop_mirrors": asked.allow_all,
        }
        self.policies[id] = {
            "id": id,
            "name": asked.name,
            "description": asked.description,
            "egress": egress,
            "create_time_ms": now,
            "update_time_ms": now,
        }
        return checked(sdk.NetworkPolicyView, self.policies[id])

    async def list_policies(self, request: Request) -> Response:
        query = self.paging(request, "name", "id")
        rows = [policy for policy in self.policies.values() if query.get("name", policy["name"]) == policy["name"]]
        return self.rows("network_policies", sdk.NetworkPolicyListView, rows, query)

    async def drop_policy(self, request: Request) -> Response:
        id = request.path_params["id"]
        used = [d.id for d in self.devboxes.values() if d.asked.launch_parameters.network_policy_id == id]
        if id not in self.policies:
            raise Problem(404, f"Network policy {id} not found")
        if any(devbox in self.engine.boxes for devbox in used):
            raise Problem(409, f"Network policy {id} is in use")
        return checked(sdk.NetworkPolicyView, self.policies.pop(id))

    # -------------------------------------------------------------------------------------------------- tunnels

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        label, dot, domain = head.host.partition(".")
        if not dot or domain != DOMAIN:
            return None
        port, _, key = label.partition("-")
        devbox = next((d for d in self.devboxes.values() if d.key == key and d.asked.tunnel), None)
        if devbox is None or not port.isdigit() or devbox.id not in self.engine.boxes:
            return Refusal(404, {}, {"message": "Tunnel not found"})
        assert devbox.asked.tunnel is not None
        if devbox.asked.tunnel.auth_mode != "authenticated":
            return PortRoute(devbox.box, int(port))
        if head.get(TOKEN_HEADER) != f"Bearer {devbox.token}":
            return Refusal(401, {}, {"message": "Unauthorized"})
        return PortRoute(devbox.box, int(port), token=devbox.token[:12], strip=frozenset({TOKEN_HEADER}))


def checked(model: Any, data: dict[str, Any]) -> Response:
    """An answer that the SDK's own model takes and knows all of."""
    found = model.model_validate(data)
    assert not found.model_extra, found.model_extra
    return JSONResponse(data)


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """The envelope."""
    return JSONResponse({"code": str(status), "message": message}, status, headers)
