"""The data plane of Azure Container Apps Sandboxes over TLS, as azure-containerapps-sandbox 0.1.0b4 speaks it.

UNVERIFIED, taken as what is hardest on a provider: commands run as root and without the image's ENV (but with the
variables given at create); a port is reached by the name ID--PORT and its traffic is no use of the sandbox; the image's
own command runs when neither entrypoint nor cmd is given; a disk image that cannot be made ends as Failed with a text.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import LOGIN, Box, BoxGone, EmuImage, Face, PortRoute, QuotaReached, Refusal, drop
from tests.emulators.faces import aca_shapes as shapes
from tests.emulators.faces.aca_shapes import Refused, refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from tests.emulators.engine import Engine, RequestHead

TOKEN = "eyJ.emulated-entra-token.0123456789"
API = "2026-02-01-preview"
SUBSCRIPTION, RESOURCES, GROUP = "00000000-0000-0000-0000-0000000000aa", "rg", "boxes"
PORTS = "proxy.azuredevcompute.test"
CODES = {
    400: "BadRequest", 401: "InvalidAuthenticationToken", 402: "PaymentRequired", 403: "AuthorizationFailed",
    404: "ResourceNotFound", 409: "Conflict", 429: "TooManyRequests", 500: "InternalServerError",
    503: "ServiceUnavailable",
}  # fmt: skip
PUBLIC = ("ubuntu", "python-3.13")


class AcaFace(Face):
    """One sandbox group.

    Attributes:
        page: Sandboxes of one page of a listing.
        disks: Private disk images by id, as GET answers them.
        build_s: How long making one takes.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.page, self.build_s = 100, 0.05
        self.disks: dict[str, dict[str, Any]] = {}
        self.emulated: dict[str, EmuImage] = {}
        group = "/subscriptions/{sub}/resourceGroups/{rg}/sandboxGroups/{group}"
        one, disk = f"{group}/sandboxes/{{id}}", f"{group}/diskimages/{{id}}"
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("PUT", f"{group}/sandboxes", self.create),
            ("GET", f"{group}/sandboxes", self.list),
            ("GET", one, self.info),
            ("DELETE", one, self.delete),
            ("POST", f"{one}/executeShellCommand", self.exec),
            ("PUT", f"{one}/files", self.write),
            ("POST", f"{one}/ports/add", self.add_port),
            ("POST", f"{one}/lifecycle", self.lifecycle),
            ("POST", f"{one}/stop", self.stop),
            ("POST", f"{one}/resume", self.resume),
            ("POST", f"{one}/commit", self.commit),
            ("PUT", f"{group}/diskimages", self.make_disk),
            ("GET", f"{group}/diskimages", self.list_disks),
            ("GET", f"{group}/diskimages/public/{{name}}", self.public_disk),
            ("GET", disk, self.disk),
            ("DELETE", disk, self.drop_disk),
        ]
        self.app = Starlette(routes=[Route(path, self.guard(call), methods=[verb]) for verb, path, call in table])

    def guard(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                challenge = {"WWW-Authenticate": 'Bearer authorization_uri="https://login.microsoftonline.com/"'}
                return refusal(401, CODES[401], "The access token is missing or invalid.", challenge)
            if request.query_params.get("api-version") != API:
                return refusal(400, "UnsupportedApiVersion", f"The api-version must be {API}.")
            where = request.path_params
            if (where["sub"], where["rg"], where["group"]) != (SUBSCRIPTION, RESOURCES, GROUP):
                return refusal(404, "ResourceNotFound", f"The sandbox group {where['group']!r} was not found.")
            try:
                return await handler(request)
            except shapes.Wrong as error:
                return refusal(400, "InvalidRequestContent", str(error))
            except Refused as error:
                return refusal(error.status, error.code, error.message)
            except BoxGone:
                return refusal(409, "SandboxNotRunning", "The sandbox is not running.")
            except FakeApiError as error:
                headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
                return refusal(error.status or 500, CODES.get(error.status, "Error"), error.message, headers)

        return guarded

    async def body(self, request: Request, shape: Any) -> dict[str, Any]:
        """The JSON body, in that shape."""
        try:
            asked = json.loads(await request.body() or b"{}")
        except ValueError:
            raise shapes.Wrong("the body is no JSON") from None
        shapes.check(asked, shape)
        return dict(asked)

    def box(self, request: Request) -> Box:
        """The sandbox of the path."""
        box = self.engine.boxes.get(request.path_params["id"])
        if box is None:
            raise Refused(404, "SandboxNotFound", f"Sandbox {request.path_params['id']!r} was not found.")
        return box

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def create(self, request: Request) -> Response:
        asked = await self.body(request, shapes.SANDBOX)
        shapes.check_sandbox(asked)
        labels = asked.get("labels", {})
        await self.engine.hook("create", "before", labels=labels)
        image = self.source(asked["sourcesRef"]["diskImage"])
        argv = (*asked.get("entrypoint", ()), *asked.get("cmd", ()))
        suspend = asked["lifecycle"]["autoSuspendPolicy"]
        id = str(uuid.uuid4())
        data = {"body": asked, "ports": {}, "life": dict(asked["lifecycle"])}
        for port in asked.get("ports", []):
            data["ports"][port["port"]] = self.published(id, port)
        try:
            box = await self.engine.create(
                image,
                id=id,
                argv=argv or None,
                env=asked.get("environment", {}),
                labels=labels,
                idle_s=suspend["interval"],
                on_idle="pause",
                data=data,
            )
        except QuotaReached as error:
            return refusal(429, "SandboxLimitReached", f"All places of the sandbox group are taken: {error}.")
        await self.engine.hook("create", "after")
        return JSONResponse({**shapes.shown(box), "state": "Creating"}, 201)

    def source(self, ref: dict[str, Any]) -> EmuImage:
        if ref.get("isPublic"):
            if ref.get("name") not in PUBLIC:
                raise Refused(404, "DiskImageNotFound", f"Public disk image {ref.get('name')!r} was not found.")
            return self.engine.images[self.engine.image("light")].but(ref=ref["name"], cmd=(), entrypoint=())
        disk = self.disks.get(ref.get("id", ""))
        if disk is None:
            raise Refused(404, "DiskImageNotFound", f"Disk image {ref.get('id')!r} was not found.")
        if disk["status"]["state"] != "Ready":
            raise Refused(409, "DiskImageNotReady", f"Disk image {ref['id']!r} is not ready.")
        return self.emulated[disk["id"]]

    def published(self, id: str, port: dict[str, Any]) -> dict[str, Any]:
        return {**port, "url": f"https://{id}--{port['port']}.{PORTS}"}

    async def list(self, request: Request) -> Response:
        text = request.query_params.get("labels", "")
        wanted = dict(item.split("=", 1) for item in text.split(",") if item)
        skip = request.query_params.get("$skipToken", "0")
        if skip == "cut":
            cut = drop.get()
            assert cut is not None
            cut()
            return Response()
        hooked = await self.engine.hook("find" if "oe-key" in wanted else "list", "before")
        found = [shapes.shown(box) for box in self.engine.visible() if wanted.items() <= box.labels.items()]
        await self.engine.hook("find" if "oe-key" in wanted else "list", "after")
        begin = int(skip)
        page = found[begin : begin + self.page] if hooked.half is None else found[: hooked.half]
        more = str(begin + self.page) if begin + self.page < len(found) else None
        more = more if hooked.half is None else "cut"
        link = request.url.include_query_params(**{"$skipToken": more}) if more else None
        return JSONResponse({"value": page, "nextLink": str(link).replace("http:", "https:", 1) if link else None})

    async def info(self, request: Request) -> Response:
        async with self.engine.hooked("info"):
            return JSONResponse(shapes.shown(self.box(request)))

    async def delete(self, request: Request) -> Response:
        async with self.engine.hooked("delete"):
            if not await self.engine.delete(self.box(request).id):
                raise Refused(404, "SandboxNotFound", "The sandbox was not found.")
        return Response(status_code=202)

    async def exec(self, request: Request) -> Response:
        box, asked = self.box(request), await self.body(request, shapes.EXEC)
        if not asked.get("command"):
            raise shapes.Wrong("body.command is missing")
        async with self.engine.hooked("exec"):
            box.touch()
            env = box.data["body"].get("environment", {})
            try:
                proc = await box.exec(["/bin/sh", "-c", asked["command"]], env=env, cwd=asked.get("workingDirectory"))
            except OSError as error:
                raise Refused(400, "InvalidWorkingDirectory", f"{error.filename}: {error.strerror}") from None
            said: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

            async def collect(name: str, stream: Any) -> None:
                async for data in stream:
                    said[name] += data

            reading = asyncio.gather(collect("stdout", proc.stdout), collect("stderr", proc.stderr))
            code = await proc.wait()
            # What was left in the background may hold the pipes: what is there now is all there is.
            await asyncio.wait({reading}, timeout=0.1)
            reading.cancel()
            texts = {name: bytes(data).decode("utf-8", "replace") for name, data in said.items()}
            box.touch()
        return JSONResponse({**texts, "exitCode": code})

    async def write(self, request: Request) -> Response:
        box, query = self.box(request), request.query_params
        unknown = set(query) - {"api-version", "path", "createDirs", "mode", "containerName"}
        if unknown or not query.get("path", "").startswith("/"):
            raise shapes.Wrong(f"query: {sorted(unknown) or 'path must be absolute'}")
        if request.headers.get("content-type") != "application/octet-stream":
            raise Refused(415, "UnsupportedMediaType", "Files are application/octet-stream.")
        box.touch()
        mode = int(query["mode"], 8) if "mode" in query else 0o644
        parents = query.get("createDirs") == "true"
        try:
            await box.write(query["path"], await request.body(), mode=mode, parents=parents)
        except OSError as error:
            raise Refused(400, "FileWriteFailed", str(error)) from None
        return Response(status_code=200)

    async def add_port(self, request: Request) -> Response:
        box, port = self.box(request), await self.body(request, shapes.PORT)
        shapes.check_port(port)
        box.data["ports"][port["port"]] = self.published(box.id, port)
        return JSONResponse({"ports": [*box.data["ports"].values()]})

    async def lifecycle(self, request: Request) -> Response:
        box, asked = self.box(request), await self.body(request, shapes.LIFE)
        async with self.engine.hooked("lifecycle"):
            box.data["life"] = {**box.data["life"], **asked}
            box.idle_s = box.data["life"]["autoSuspendPolicy"]["interval"]
            self.end_later(box)
        return JSONResponse(box.data["life"])

    def end_later(self, box: Box) -> None:
        """UNVERIFIED: the delete interval counts from the last use, like the suspend interval."""
        policy = box.data["life"].get("autoDeletePolicy") or {}
        if not policy.get("enabled"):
            return
        due = box.used_at + policy["deleteIntervalInSeconds"]

        async def end() -> None:
            if box.id in self.engine.boxes:
                if self.engine.clock.now() >= box.used_at + policy["deleteIntervalInSeconds"]:
                    await self.engine.delete(box.id)
                else:
                    self.end_later(box)

        self.engine.clock.at(due, end)

    async def stop(self, request: Request) -> Response:
        box = self.box(request)
        if box.state == "running":
            box.data["reason"] = "UserStopped"
            await box.pause()
        return Response(status_code=204)

    async def resume(self, request: Request) -> Response:
        box = self.box(request)
        if box.state == "paused":
            box.data.pop("reason", None)
            await box.resume()
        return Response(status_code=204)

    # -------------------------------------------------------------------------------------------------- disks

    async def commit(self, request: Request) -> Response:
        box, asked = self.box(request), await self.body(request, shapes.NAMED)
        if box.state != "running":
            raise BoxGone(box.id)
        disk = self.new_disk(asked.get("labels", {}), None)
        self.emulated[disk["id"]] = await self.engine.snapshot(box, disk["id"])
        disk["status"] = {"state": "Ready"}
        return JSONResponse({"diskImage": {**disk, "status": {"state": "Creating"}}})

    def new_disk(self, labels: dict[str, str], image: dict[str, Any] | None) -> dict[str, Any]:
        id = str(uuid.uuid4())
        self.disks[id] = {"id": id, "labels": labels, "image": image, "status": {"state": "Creating"}}
        return self.disks[id]

    async def make_disk(self, request: Request) -> Response:
        asked = await self.body(request, shapes.DISK)
        if not asked.get("image", {}).get("base"):
            raise shapes.Wrong("body.image.base is missing")
        async with self.engine.hooked("prepare"):
            disk = self.new_disk(asked.get("labels", {}), asked["image"])
        self.engine.keep(self.build(disk, asked))
        return JSONResponse(disk, 201)

    async def build(self, disk: dict[str, Any], asked: dict[str, Any]) -> None:
        base, given = asked["image"]["base"], asked.get("registryCredentials", {})
        await asyncio.sleep(self.build_s)
        image = self.engine.find_image(base)
        allowed = (given.get("username"), given.get("token")) == LOGIN or "managedIdentityResourceId" in asked
        if "/private/" in base and not allowed:
            disk["status"] = {"state": "Failed", "message": f"pulling {base}: unauthorized: authentication required"}
        elif base.partition(":")[0] == "broken":
            disk["status"] = {"state": "Failed", "message": "converting layer 3 of 7: no space left on device"}
        elif image is None:
            disk["status"] = {"state": "Failed", "message": f"pulling {base}: manifest unknown"}
        else:
            self.emulated[disk["id"]] = image
            disk["status"] = {"state": "Ready"}

    async def list_disks(self, request: Request) -> Response:
        return JSONResponse({"value": [*self.disks.values()]})

    async def disk(self, request: Request) -> Response:
        disk = self.disks.get(request.path_params["id"])
        if disk is None:
            raise Refused(404, "DiskImageNotFound", "The disk image was not found.")
        return JSONResponse(disk)

    async def public_disk(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PUBLIC:
            raise Refused(404, "DiskImageNotFound", f"Public disk image {name!r} was not found.")
        return JSONResponse({"name": name, "id": f"public-{name}", "status": {"state": "Ready"}})

    async def drop_disk(self, request: Request) -> Response:
        if self.disks.pop(request.path_params["id"], None) is None:
            raise Refused(404, "DiskImageNotFound", "The disk image was not found.")
        self.engine.drop_image(request.path_params["id"])
        return Response(status_code=204)

    # -------------------------------------------------------------------------------------------------- ports

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        name, _, domain = head.host.partition(".")
        if domain != PORTS:
            return None
        id, _, number = name.rpartition("--")
        box = self.engine.boxes.get(id)
        port = box.data["ports"].get(int(number)) if box is not None and number.isdigit() else None
        if box is None or port is None:
            return Refusal(404, {}, b"no such sandbox or port")
        if not (port.get("auth") or {}).get("anonymous"):
            return Refusal(302, {"location": "https://login.microsoftonline.com/"}, b"")
        if not shapes.lets_in(port, "127.0.0.1"):
            return Refusal(403, {}, b"this address may not use the port")
        if box.state != "running":
            return Refusal(503, {}, b"the sandbox is suspended")
        return PortRoute(box, port["port"])
