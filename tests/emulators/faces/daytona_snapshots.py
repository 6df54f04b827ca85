"""Daytona's snapshots and their builder, and the object store from which it takes build contexts.

The store speaks as much S3 as the SDK's ``obstore`` needs for one object of less than 5 MiB, and checks that requests
are signed with the credentials it gave (not the signature itself). UNVERIFIED: the words of a failing pull.
"""

from __future__ import annotations

import asyncio
import io
import re
import tarfile
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import daytona_api_client_async as sdk
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.emulators.engine import BuildFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.requests import Request

    from tests.emulators.engine import EmuImage
    from tests.emulators.faces.daytona_api import DaytonaFace

ACCESS, SESSION, BUCKET = "AKIAEMULATED0000", "emulated-session-token", "daytona-volume-builds"
SECRET = "emulated-secret-0123456789"
DEFAULTS = {"cpu": 1, "gpu": 0, "memory": 1, "disk": 3}


@dataclass
class Record:
    """One snapshot."""

    id: str
    name: str
    state: str
    sizes: dict[str, Any]
    image: Any = None
    image_name: str | None = None
    entrypoint: list[str] | None = None
    reason: str | None = None
    source: str | None = None
    log: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Snapshots:
    """Those of one face.

    Attributes:
        records: By name.
        objects: What the store holds, by key.
        registries: Prefixes of private registries that the organisation has registered.
        builds: How many builds and pulls were begun.
    """

    def __init__(self, face: DaytonaFace) -> None:
        self.face = face
        self.records: dict[str, Record] = {}
        self.objects: dict[str, bytes] = {}
        self.registries: set[str] = set()
        self.builds = 0

    def routes(self) -> list[tuple[str, str, Any]]:
        one = "/api/snapshots/{name}"
        return [
            ("POST", "/api/snapshots", self.create),
            ("GET", "/api/snapshots", self.list),
            ("GET", one, self.get),
            ("DELETE", one, self.remove),
            ("POST", one + "/activate", self.activate),
            ("GET", one + "/build-logs-url", self.log_url),
            ("GET", "/api/build-logs/{name}", self.log),
            ("GET", "/api/object-storage/push-access", self.access),
        ]

    def storage(self) -> list[tuple[str, Any]]:
        return [("HEAD", self.head), ("PUT", self.put), ("POST", self.multipart)]

    # ------------------------------------------------------------------------------------------------ snapshots

    def add(self, name: str, image: EmuImage, sizes: dict[str, Any], source: str | None = None) -> Record:
        """One that is there."""
        self.records[name] = Record(str(uuid.uuid4()), name, "active", sizes, image, source=source)
        return self.records[name]

    def wanted(self, name: str) -> Record:
        """What a create asks for."""
        from tests.emulators.faces.daytona_api import Problem

        record = self.found(name)
        if record is None:
            raise Problem(404, f"Snapshot {name} not found. Did you add it through the Daytona Dashboard?")
        if record.state != "active":
            raise Problem(400, f"Snapshot {name} is {record.state}")
        return record

    def found(self, name: str) -> Record | None:
        return next((record for record in self.records.values() if name in (record.name, record.id)), None)

    def named(self, request: Request) -> Record:
        from tests.emulators.faces.daytona_api import Problem

        record = self.found(request.path_params["name"])
        if record is None:
            raise Problem(404, f"Snapshot {request.path_params['name']} not found")
        return record

    async def create(self, request: Request) -> Response:
        from tests.emulators.faces.daytona_api import Problem

        asked = await self.face.body(request, sdk.CreateSnapshot)
        if (asked.image_name is None) == (asked.build_info is None):
            raise Problem(400, "either imageName or buildInfo must be given")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]*", asked.name):
            raise Problem(400, "Snapshot name is invalid")
        if asked.image_name is not None and asked.image_name.endswith(":latest"):
            raise Problem(400, "Image tag latest is not allowed")
        async with self.face.engine.hooked("prepare", name=asked.name):
            if asked.name in self.records:
                raise Problem(409, f"Snapshot with name {asked.name} already exists for this organization")
            sizes = {name: getattr(asked, name) or default for name, default in DEFAULTS.items()}
            sizes |= {"gpu_type": asked.gpu_type[0]} if asked.gpu_type else {}
            record = Record(str(uuid.uuid4()), asked.name, "pending", sizes, None, asked.image_name, asked.entrypoint)
            self.records[asked.name] = record
            self.builds += 1
            self.face.engine.keep(
                self.pull(record) if asked.build_info is None else self.build(record, asked.build_info)
            )
        return self.told(record)

    async def pull(self, record: Record) -> None:
        record.state = "pulling"
        name = str(record.image_name)
        path = name.partition("/")[2]
        if path.startswith("private/") and not any(name.startswith(prefix) for prefix in self.registries):
            record.state, record.reason = "error", f"pull access denied for {name}: no registry of this organisation"
        elif (image := self.face.engine.find_image(name)) is None:
            record.state, record.reason = "error", f"manifest unknown: {name}"
        else:
            record.image, record.state = image, "active"

    async def build(self, record: Record, info: Any) -> None:
        record.state = "building"

        def said(line: str) -> None:
            record.log.append(line)
            news, record.news = record.news, asyncio.Event()
            news.set()

        try:
            folder = self.face.engine.tmp / f"context-{uuid.uuid4().hex}"
            for digest in info.context_hashes or ():
                key = f"{self.organization}/{digest}/context.tar"
                if key not in self.objects:
                    raise BuildFailed(f"no context {digest}")
                await asyncio.to_thread(unpack, self.objects[key], folder)
            image = await self.face.engine.build(
                info.dockerfile_content, folder, log=said, ref=f"daytona/{record.name}"
            )
        except BuildFailed as error:
            said(str(error))
            record.state, record.reason = "build_failed", str(error)
        else:
            record.image, record.entrypoint, record.state = image, list(image.argv), "active"
        finally:
            record.news.set()

    @property
    def organization(self) -> str:
        from tests.emulators.faces.daytona_api import ORGANIZATION

        return ORGANIZATION

    async def list(self, request: Request) -> Response:
        page, limit = (
            int(float(request.query_params.get(name, low))) for name, low in (("page", "1"), ("limit", "100"))
        )
        rows = sorted(self.records.values(), key=lambda record: record.name)
        shown = rows[(page - 1) * limit : page * limit]
        answer = sdk.PaginatedSnapshots(
            items=[self.dto(record) for record in shown],
            total=len(rows),
            page=page,
            total_pages=max(1, -(-len(rows) // limit)),
        )
        return Response(answer.to_json(), media_type="application/json")

    async def get(self, request: Request) -> Response:
        return self.told(self.named(request))

    async def remove(self, request: Request) -> Response:
        from tests.emulators.faces.daytona_api import Problem

        record = self.named(request)
        if any(box.data["snapshot"] == record.name for box in self.face.engine.boxes.values()):
            raise Problem(409, "Snapshot is in use by sandboxes")
        del self.records[record.name]
        return Response(status_code=200)

    async def activate(self, request: Request) -> Response:
        record = self.named(request)
        record.state = "active"
        return self.told(record)

    async def log_url(self, request: Request) -> Response:
        url = f"{self.face.base}/api/build-logs/{self.named(request).id}"
        return JSONResponse(sdk.Url(url=url).to_dict())

    async def log(self, request: Request) -> Response:
        record = self.named(request)

        async def lines() -> AsyncIterator[bytes]:
            told = 0
            while True:
                news = record.news
                for line in record.log[told:]:
                    yield f"{line}\n".encode()
                told = len(record.log)
                if record.state != "building":
                    return
                await news.wait()

        return StreamingResponse(lines(), media_type="text/plain")

    def told(self, record: Record) -> Response:
        return Response(self.dto(record).to_json(), media_type="application/json")

    def dto(self, record: Record) -> Any:
        now = datetime.now(timezone.utc)
        sizes = dict(record.sizes)
        return sdk.SnapshotDto(
            id=record.id,
            organization_id=self.organization,
            general=False,
            name=record.name,
            image_name=record.image_name,
            state=sdk.SnapshotState(record.state),
            size=None,
            entrypoint=record.entrypoint,
            mem=sizes.pop("memory"),
            **sizes,
            error_reason=record.reason,
            created_at=now,
            updated_at=now,
            last_used_at=None,
            source_sandbox_id=record.source,
        )

    # ---------------------------------------------------------------------------------------------------- store

    async def access(self, request: Request) -> Response:
        answer = sdk.StorageAccessDto(
            access_key=ACCESS,
            secret=SECRET,
            session_token=SESSION,
            storage_url=f"{self.face.base}/s3",
            organization_id=self.organization,
            bucket=BUCKET,
            region="us-east-2",
        )
        return JSONResponse(answer.to_dict())

    def refused(self, request: Request) -> Response | None:
        signed = request.headers.get("authorization", "")
        if not signed.startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS}/"):
            return s3_error(403, "InvalidAccessKeyId")
        if request.headers.get("x-amz-security-token") != SESSION:
            return s3_error(403, "InvalidToken")
        if request.path_params["bucket"] != BUCKET:
            return s3_error(404, "NoSuchBucket")
        if not request.path_params["key"].startswith(f"{self.organization}/"):
            return s3_error(403, "AccessDenied")
        return None

    async def head(self, request: Request) -> Response:
        if (no := self.refused(request)) is not None:
            return no
        data = self.objects.get(request.path_params["key"])
        if data is None:
            return Response(status_code=404)
        headers = {"content-length": str(len(data)), "etag": '"x"', "last-modified": "Mon, 30 Nov 2026 00:00:00 GMT"}
        return Response(headers=headers)

    async def put(self, request: Request) -> Response:
        if (no := self.refused(request)) is not None:
            return no
        self.objects[request.path_params["key"]] = await request.body()
        return Response(headers={"etag": '"x"'})

    async def multipart(self, request: Request) -> Response:
        return self.refused(request) or s3_error(501, "NotImplemented")


def s3_error(status: int, code: str) -> Response:
    """The store's envelope."""
    return Response(f"<Error><Code>{code}</Code></Error>", status, media_type="application/xml")


def unpack(data: bytes, folder: Path) -> None:
    """One context archive into the build's root."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(folder, filter="data")
