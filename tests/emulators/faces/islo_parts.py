"""What stands beside islo's sandboxes: logins and gateway profiles on the control plane, snapshots on the other.

UNVERIFIED, since no page or SDK says it: that a profile in use cannot be removed (409), that a profile's name is unique
(409), and the words a snapshot's status has.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from islo import GatewayProfileDetailResponse, GatewayProfileResponse, GatewayRuleResponse, SnapshotResponse
from islo.types import PaginatedSnapshotResponse
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from tests.emulators.faces.islo_face import IsloFace

KEY = "ak_emulated_0123456789abcdef"


class Problem(Exception):
    """An answer that is a refusal."""

    def __init__(self, status: int, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = status, {"code": code, "message": message, **more}


def check(asked: Any, shape: dict[str, Any], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The body, if it has these fields and no others."""
    if not isinstance(asked, dict):
        raise Problem(422, "VALIDATION_ERROR", "the body must be an object")
    for name, value in asked.items():
        wanted = shape.get(name)
        wrong = wanted is None or not isinstance(value, wanted)
        if wrong or (isinstance(value, bool) and wanted is int):
            raise Problem(422, "VALIDATION_ERROR", f"{name}: unknown field or wrong type")
    for name in needed:
        if asked.get(name) in (None, "", []):
            raise Problem(422, "VALIDATION_ERROR", f"{name}: field required")
    return asked


class Control:
    """Logins and gateway profiles.

    Attributes:
        tokens: Session tokens that were given out and count.
        max_age: Seconds a token is said to last.
        logins: How often a key was exchanged.
        profiles: Gateway profiles by id.
    """

    def __init__(self, face: IsloFace) -> None:
        self.face = face
        self.tokens: set[str] = set()
        self.max_age = 600
        self.logins = 0
        self.profiles: dict[str, dict[str, Any]] = {}

    def routes(self) -> list[tuple[str, str, Any]]:
        all_, one = "/control/gateway/profiles", "/control/gateway/profiles/{id}"
        return [
            ("POST", "/control/auth/token", self.login),
            ("GET", all_, self.list),
            ("POST", all_, self.make),
            ("GET", one, self.detail),
            ("DELETE", one, self.remove),
            ("POST", f"{one}/rules", self.rule),
        ]

    async def login(self, request: Request) -> Response:
        asked = check(await request.json(), {"access_key": str}, ("access_key",))
        self.logins += 1
        await self.face.engine.hook("login")
        if asked["access_key"] != KEY:
            raise Problem(401, "AUTH_TOKEN_INVALID", "the access key is not valid")
        token = f"session-{secrets.token_hex(12)}"
        self.tokens.add(token)
        return JSONResponse({"session_token": token, "cookie_max_age": self.max_age})

    def profile(self, request: Request) -> dict[str, Any]:
        found = self.profiles.get(request.path_params["id"])
        if found is None:
            raise Problem(404, "RESOURCE_NOT_FOUND", "no such gateway profile")
        return found

    async def list(self, request: Request) -> Response:
        rows = [self.shown(one, GatewayProfileResponse) for one in self.profiles.values()]
        return JSONResponse(rows)

    def shown(self, profile: dict[str, Any], model: Any) -> Any:
        fields = {name: value for name, value in profile.items() if name != "rules"}
        more = {"rules": profile["rules"]} if model is GatewayProfileDetailResponse else {}
        return model(**fields, **more, rule_count=len(profile["rules"])).dict()

    async def make(self, request: Request) -> Response:
        shape = {"name": str, "description": str, "default_action": str, "internet_enabled": bool, "is_default": bool}
        asked = check(await request.json(), shape, ("name",))
        if asked.get("default_action", "allow") not in ("allow", "deny"):
            raise Problem(422, "VALIDATION_ERROR", "default_action: allow or deny")
        async with self.face.engine.hooked("profile"):
            if any(one["name"] == asked["name"] for one in self.profiles.values()):
                raise Problem(409, "INVALID_REQUEST", f"a gateway profile {asked['name']} exists")
            id = str(uuid.uuid4())
            defaults = {"default_action": "allow", "internet_enabled": True, "is_default": False}
            self.profiles[id] = {**defaults, **asked, "id": id, "rules": []}
        return JSONResponse(self.shown(self.profiles[id], GatewayProfileResponse), 201)

    async def detail(self, request: Request) -> Response:
        return JSONResponse(self.shown(self.profile(request), GatewayProfileDetailResponse))

    async def rule(self, request: Request) -> Response:
        profile = self.profile(request)
        asked = check(await request.json(), {"host_pattern": str, "action": str, "priority": int}, ("host_pattern",))
        async with self.face.engine.hooked("rule"):
            defaults = {"action": "allow", "priority": len(profile["rules"])}
            rule = GatewayRuleResponse(id=str(uuid.uuid4()), **{**defaults, **asked}).dict()
            profile["rules"].append(rule)
        return JSONResponse(rule, 201)

    async def remove(self, request: Request) -> Response:
        async with self.face.engine.hooked("unprofile"):
            profile = self.profile(request)
            users = [box for box in self.face.engine.boxes.values() if box.data["profile"] == profile["name"]]
            if users:
                raise Problem(409, "INVALID_REQUEST", "the gateway profile is in use")
            del self.profiles[profile["id"]]
        return Response(status_code=204)


class Snapshots:
    """Snapshots of disks, by name."""

    def __init__(self, face: IsloFace) -> None:
        self.face = face
        self.rows: dict[str, dict[str, Any]] = {}
        self.page = 100

    def routes(self) -> list[tuple[str, str, Any]]:
        return [
            ("GET", "/compute/snapshots/", self.list),
            ("POST", "/compute/snapshots/", self.make),
            ("GET", "/compute/snapshots/{name}", self.info),
            ("DELETE", "/compute/snapshots/{name}", self.remove),
        ]

    def row(self, request: Request) -> dict[str, Any]:
        found = self.rows.get(request.path_params["name"])
        if found is None:
            raise Problem(404, "RESOURCE_NOT_FOUND", "no such snapshot")
        return found

    async def list(self, request: Request) -> Response:
        limit = min(int(request.query_params.get("limit", "50")), self.page)
        offset = int(request.query_params.get("offset", "0"))
        rows = list(self.rows.values())
        page = PaginatedSnapshotResponse(
            items=[SnapshotResponse(**row) for row in rows[offset : offset + limit]],
            limit=limit,
            offset=offset,
            total=len(rows),
        )
        return Response(page.json(), media_type="application/json")

    async def make(self, request: Request) -> Response:
        asked = check(await request.json(), {"sandbox_name": str, "name": str}, ("sandbox_name",))
        box = self.face.named(asked["sandbox_name"])
        name = asked.get("name") or f"snap-{secrets.token_hex(4)}"
        if name in self.rows:
            raise Problem(409, "INVALID_REQUEST", f"a snapshot {name} exists")
        created = datetime.now(timezone.utc)
        self.rows[name] = {"id": str(uuid.uuid4()), "name": name, "status": "creating", "created_at": created}

        async def take() -> None:
            await asyncio.sleep(0.05)
            await self.face.engine.snapshot(box, f"islo-snapshot/{name}")
            self.rows[name]["status"] = "ready"

        self.face.engine.keep(take())
        return Response(SnapshotResponse(**self.rows[name]).json(), 201, media_type="application/json")

    async def info(self, request: Request) -> Response:
        return Response(SnapshotResponse(**self.row(request)).json(), media_type="application/json")

    async def remove(self, request: Request) -> Response:
        name = self.row(request)["name"]
        del self.rows[name]
        self.face.engine.drop_image(f"islo-snapshot/{name}")
        return Response(status_code=204)
