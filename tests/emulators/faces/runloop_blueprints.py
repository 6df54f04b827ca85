"""Runloop's blueprints and their builder, and the objects from which it takes build contexts.

UNVERIFIED: the words of a failing pull, and the status with which the SDK's "if a blueprint has dependent snapshots, it
cannot be deleted" comes (409). The store checks that an upload has the headers it was told to have, and nothing of the
API's credentials.
"""

from __future__ import annotations

import asyncio
import io
import re
import secrets
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runloop_api_client import types as sdk
from starlette.responses import JSONResponse, Response

from tests.emulators.engine import BuildFailed
from tests.emulators.faces import runloop_shapes as shapes

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from tests.emulators.engine import EmuImage
    from tests.emulators.faces.runloop_api import RunloopFace

_PRIVATE = re.compile(r"^FROM \S+/private/", re.MULTILINE)


@dataclass
class Blueprint:
    """One blueprint."""

    id: str
    asked: shapes.CreateBlueprint
    made_ms: int
    status: str = "provisioning"
    reason: str | None = None
    image: EmuImage | None = None
    log: list[str] = field(default_factory=list)


@dataclass
class Object:
    """One object of the store."""

    id: str
    asked: shapes.CreateObject
    made_ms: int
    state: str = "UPLOADING"
    signature: str = field(default_factory=lambda: secrets.token_hex(8))
    data: bytes = b""


class Blueprints:
    """Those of one face, and its store.

    Attributes:
        all: By id.
        objects: By id; those that were deleted are gone.
        builds: How many were begun.
        hold: Builds wait for it.
    """

    def __init__(self, face: RunloopFace) -> None:
        self.face = face
        self.all: dict[str, Blueprint] = {}
        self.objects: dict[str, Object] = {}
        self.builds = 0
        self.hold: asyncio.Event | None = None

    def routes(self) -> list[tuple[str, str, Any]]:
        return [
            *self.face.commands.early_routes(),
            ("POST", "/v1/blueprints", self.create),
            ("GET", "/v1/blueprints", self.list),
            ("GET", "/v1/blueprints/{id}", self.get),
            ("GET", "/v1/blueprints/{id}/logs", self.logs),
            ("POST", "/v1/blueprints/{id}/delete", self.delete),
            ("POST", "/v1/objects", self.make_object),
            ("POST", "/v1/objects/{id}/complete", self.complete_object),
            ("POST", "/v1/objects/{id}/delete", self.drop_object),
        ]

    def now(self) -> int:
        return int(self.face.engine.clock.now() * 1000)

    def source(self, asked: shapes.CreateDevbox) -> EmuImage:
        """What a devbox boots from."""
        from tests.emulators.faces.runloop_api import Problem

        if asked.snapshot_id is not None:
            record = self.face.commands.snapshots.get(asked.snapshot_id)
            if record is None or record["status"] != "complete":
                raise Problem(404, f"Snapshot {asked.snapshot_id} not found")
            image: EmuImage = record["image"]
            return image
        found = self.all.get(asked.blueprint_id or "")
        if found is None or found.image is None:
            raise Problem(404, f"Blueprint {asked.blueprint_id} not found, or not built")
        return found.image

    # ----------------------------------------------------------------------------------------------- blueprints

    async def create(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import Problem

        asked = await self.face.body(request, shapes.CreateBlueprint)
        if asked.build_context is not None:
            stored = self.objects.get(asked.build_context.object_id)
            if stored is None or stored.state != "READ_ONLY":
                raise Problem(400, f"Object {asked.build_context.object_id} is not there, or not complete")
        async with self.face.engine.hooked("prepare", name=asked.name):
            blueprint = Blueprint(f"bpt_{secrets.token_hex(8)}", asked, self.now())
            self.all[blueprint.id] = blueprint
            self.builds += 1
            self.face.engine.keep(self.build(blueprint))
        return self.told(blueprint)

    async def build(self, blueprint: Blueprint) -> None:
        blueprint.status = "building"
        asked, engine = blueprint.asked, self.face.engine
        try:
            folder = None
            if asked.build_context is not None:
                folder = engine.tmp / f"context-{blueprint.id}"
                await asyncio.to_thread(unpack, self.objects[asked.build_context.object_id].data, folder)
            if self.hold is not None:
                await self.hold.wait()
            text = asked.dockerfile or ""
            if _PRIVATE.search(text):
                raise BuildFailed("pull access denied: authentication required")
            blueprint.image = await engine.build(
                text, folder, log=blueprint.log.append, ref=f"runloop/{blueprint.id}", build_args=asked.build_args
            )
        except BuildFailed as error:
            blueprint.log.append(str(error))
            blueprint.status, blueprint.reason = "failed", "build_failed"
        else:
            blueprint.status = "build_complete"

    def named(self, request: Request) -> Blueprint:
        from tests.emulators.faces.runloop_api import Problem

        found = self.all.get(request.path_params["id"])
        if found is None:
            raise Problem(404, "Blueprint not found")
        return found

    async def list(self, request: Request) -> Response:
        query = self.face.paging(request, "name", "status")
        rows = [b for b in self.all.values() if query.get("name", b.asked.name) == b.asked.name]
        rows = [b for b in rows if query.get("status", b.status) == b.status]
        return self.face.rows("blueprints", sdk.BlueprintListView, [self.view(b) for b in rows], query)

    async def get(self, request: Request) -> Response:
        await self.face.engine.hook("look", "before")
        return self.told(self.named(request))

    async def logs(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import checked

        blueprint = self.named(request)
        lines = [{"level": "info", "message": line, "timestamp_ms": blueprint.made_ms} for line in blueprint.log]
        return checked(sdk.BlueprintBuildLogsListView, {"blueprint_id": blueprint.id, "logs": lines})

    async def delete(self, request: Request) -> Response:
        from tests.emulators.faces.runloop_api import Problem

        blueprint = self.named(request)
        taken = [record["view"]["source_blueprint_id"] for record in self.face.commands.snapshots.values()]
        if blueprint.id in taken:
            raise Problem(409, "Blueprint has dependent snapshots")
        del self.all[blueprint.id]
        return JSONResponse({})

    def told(self, blueprint: Blueprint) -> Response:
        from tests.emulators.faces.runloop_api import checked

        return checked(sdk.BlueprintView, self.view(blueprint))

    def view(self, blueprint: Blueprint) -> dict[str, Any]:
        asked = blueprint.asked
        return {
            "id": blueprint.id,
            "name": asked.name,
            "create_time_ms": blueprint.made_ms,
            "parameters": asked.model_dump(exclude_none=True),
            "state": "created",
            "status": blueprint.status,
            "failure_reason": blueprint.reason,
            "metadata": asked.metadata,
        }

    # -------------------------------------------------------------------------------------------------- objects

    async def make_object(self, request: Request) -> Response:
        asked = await self.face.body(request, shapes.CreateObject)
        made = Object(f"obj_{secrets.token_hex(8)}", asked, self.now())
        self.objects[made.id] = made
        url = f"{self.face.base}/storage/{made.id}?signature={made.signature}"
        return self.stored(made, upload_url=url, upload_headers={"x-storage-once": made.signature})

    async def put(self, request: Request) -> Response:
        """A presigned upload: the address is the credential."""
        stored = self.objects.get(request.path_params["id"])
        shown = request.query_params.get("signature"), request.headers.get("x-storage-once")
        if stored is None or shown != (stored.signature, stored.signature) or "authorization" in request.headers:
            return Response(status_code=403)
        stored.data = await request.body()
        return Response()

    def object(self, request: Request) -> Object:
        from tests.emulators.faces.runloop_api import Problem

        found = self.objects.get(request.path_params["id"])
        if found is None:
            raise Problem(404, "Object not found")
        return found

    async def complete_object(self, request: Request) -> Response:
        stored = self.object(request)
        stored.state = "READ_ONLY"
        return self.stored(stored)

    async def drop_object(self, request: Request) -> Response:
        stored = self.object(request)
        stored.state = "DELETED"
        del self.objects[stored.id]
        return self.stored(stored)

    def stored(self, stored: Object, **more: Any) -> Response:
        from tests.emulators.faces.runloop_api import checked

        asked = stored.asked
        ends = stored.made_ms + asked.ttl_ms if asked.ttl_ms else None
        view = {
            "id": stored.id, "name": asked.name, "content_type": asked.content_type, "state": stored.state,
            "create_time_ms": stored.made_ms, "delete_after_time_ms": ends, "metadata": asked.metadata, **more,
        }  # fmt: skip
        return checked(sdk.ObjectView, view)


def unpack(data: bytes, folder: Path) -> None:
    """One context archive into the build's root."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        tar.extractall(folder, filter="data")
