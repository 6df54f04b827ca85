"""E2B's template builder: names, uploads, builds that really run, and their logs; replies are the SDK's own models.

That a second build of a name under way is answered by 409, and the texts of failures, are UNVERIFIED.
"""

from __future__ import annotations

import datetime
import io
import json
import posixpath
import re
import secrets
import tarfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import LOGIN, BuildFailed, EmuImage

if TYPE_CHECKING:
    from starlette.requests import Request

    from tests.emulators.faces.e2b_face import E2bFace

LINES = 100
"""Log lines in one reply at most."""
_STEPS = {"COPY": (2, 4), "RUN": (1, 2), "ENV": (2, 100), "WORKDIR": (1, 1), "USER": (1, 1)}


@dataclass
class Build:
    """One build."""

    id: str
    status: str = "waiting"
    log: list[tuple[str, str]] = field(default_factory=list)
    reason: str = ""
    at: float = 0.0


@dataclass
class Template:
    """One template."""

    id: str
    names: list[str]
    cpus: int
    memory_mb: int
    at: float
    builds: list[Build] = field(default_factory=list)
    image: EmuImage | None = None
    start_cmd: str = ""
    is_snapshot: bool = False


class Builder:
    """Templates of one account.

    Attributes:
        templates: By id.
        files: Uploaded archives by hash.
        pulls: Credentials that came with a registry image, in order.
    """

    def __init__(self, face: E2bFace) -> None:
        self.face, self.engine = face, face.engine
        self.templates: dict[str, Template] = {}
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, str] = {}
        self.pulls: list[dict[str, str]] = []
        self.keep("base", None).image = EmuImage("base")

    def routes(self) -> list[Route]:
        """Its paths."""
        guard, one = self.face.guard, "/templates/{id}"
        return [
            Route("/v3/templates", guard(self.request), methods=["POST"]),
            Route("/templates", guard(self.list), methods=["GET"]),
            Route("/templates/aliases/{id:path}", guard(self.alias), methods=["GET"]),
            Route(one + "/files/{hash}", guard(self.file), methods=["GET"]),
            Route("/v2/templates/{id}/builds/{build}", guard(self.start), methods=["POST"]),
            Route(one + "/builds/{build}/status", guard(self.status), methods=["GET"]),
            Route(one, guard(self.info), methods=["GET"]),
            Route(one, guard(self.delete), methods=["DELETE"]),
            # A presigned address: no key, the path is the secret.
            Route("/upload/{ticket}", self.upload, methods=["PUT"]),
        ]

    def find(self, name: str) -> Template | None:
        """By id or name, with or without a tag."""
        bare = name.removesuffix(":default").rpartition("/")[2]
        for template in self.templates.values():
            if {name, bare} & {template.id, *template.names}:
                return template
        return None

    def keep(self, name: str, like: Template | None) -> Template:
        """A template that was not built: a snapshot, or the vendor's base."""
        template = Template(f"t{secrets.token_hex(8)}", [name], 2, 512, self.engine.clock.now())
        if like is not None:
            template.cpus, template.memory_mb, template.is_snapshot = like.cpus, like.memory_mb, True
        self.templates[template.id] = template
        return template

    def _of(self, request: Request) -> Template:
        name = unquote(request.path_params["id"])
        found = self.find(name)
        if found is None:
            raise FakeApiError(404, f"template '{name}' not found")
        return found

    def _build(self, request: Request, template: Template) -> Build:
        for build in template.builds:
            if build.id == request.path_params["build"]:
                return build
        raise FakeApiError(404, f"build {request.path_params['build']} not found")

    # ----------------------------------------------------------------------------------------------------- builds

    async def request(self, request: Request) -> Response:
        """Announce a build."""
        shape: dict[str, Any] = dict.fromkeys(("name", "alias", "teamID"), str)
        shape |= {"tags": list, **dict.fromkeys(("cpuCount", "memoryMB", "minFreeDiskMb"), int)}
        asked = await self.face.body(request, shape, "name")
        name, cpus, memory = asked["name"], asked.get("cpuCount", 2), asked.get("memoryMB", 512)
        if not re.fullmatch(r"[a-z0-9_-]{1,128}(:[a-z0-9_.-]+)?", name):
            raise FakeApiError(400, f"invalid template name: {name}")
        if not 1 <= cpus <= 8:
            raise FakeApiError(400, "CPU count exceeds team limits (8)")
        if not 128 <= memory <= 8192 or memory % 2:
            raise FakeApiError(400, "Memory must be even, at least 128 MB and at most 8192 MB")
        async with self.engine.hooked("prepare"):
            template = self.find(name)
            if template is None:
                template = Template(f"t{secrets.token_hex(8)}", [name], cpus, memory, self.engine.clock.now())
                self.templates[template.id] = template
            if any(build.status in ("waiting", "building") for build in template.builds):
                raise FakeApiError(409, f"an identical build of {name} is in flight")
            template.cpus, template.memory_mb = cpus, memory
            build = Build(str(uuid.uuid4()), at=self.engine.clock.now())
            template.builds.append(build)
        reply = self.face.models.TemplateRequestResponseV3(
            template_id=template.id, build_id=build.id, public=False, names=[f"team-slug/{name}"], tags=["default"],
            aliases=[name],
        )  # fmt: skip
        return JSONResponse(reply.to_dict(), 202)

    async def file(self, request: Request) -> Response:
        """Where to upload an archive, unless it is here."""
        self._of(request)
        hash = request.path_params["hash"]
        present = hash in self.files
        fields: dict[str, Any] = {"present": present}
        if not present:
            ticket = secrets.token_hex(16)
            self.uploads[ticket] = hash
            fields["url"] = f"{str(request.base_url).rstrip('/')}/upload/{ticket}"
        return JSONResponse(self.face.models.TemplateBuildFileUpload(**fields).to_dict(), 201)

    async def upload(self, request: Request) -> Response:
        """The archive."""
        hash = self.uploads.pop(request.path_params["ticket"], None)
        if hash is None or "content-length" not in request.headers:
            return Response("<Error><Code>AccessDenied</Code></Error>", 403, media_type="application/xml")
        self.files[hash] = await request.body()
        return Response(status_code=200)

    async def start(self, request: Request) -> Response:
        """Begin."""
        shape = {"fromImage": str, "fromTemplate": str, "fromImageRegistry": dict, "force": bool, "steps": list,
                 "startCmd": str, "readyCmd": str, **self.extra_shape()}  # fmt: skip
        asked = await self.face.body(request, shape)
        template = self._of(request)
        build = self._build(request, template)
        if build.status != "waiting":
            raise FakeApiError(400, "build is not in waiting state")
        for step in asked.get("steps", []):
            if not set(step) <= {"type", "args", "force", "filesHash", "forceUpload"}:
                raise FakeApiError(400, f"Error parsing body: unknown field in step {sorted(step)}")
            least, most = _STEPS.get(step["type"], (1, 0))
            if not least <= len(step.get("args", [])) <= most:
                raise FakeApiError(400, f"invalid arguments of step {step['type']}")
            if step["type"] == "COPY" and step.get("filesHash") not in self.files:
                raise FakeApiError(400, "files of a COPY step were not uploaded")
        if bool(asked.get("fromImage")) == bool(asked.get("fromTemplate")):
            raise FakeApiError(400, "either fromImage or fromTemplate is required")
        build.status = "building"
        self.engine.keep(self._run(template, build, asked))
        return Response(status_code=202)

    def extra_shape(self) -> dict[str, Any]:
        """Further fields of a build."""
        return {}

    async def _run(self, template: Template, build: Build, asked: dict[str, Any]) -> None:
        def say(line: str) -> None:
            build.log.append(("info", line.rstrip("\n")))

        try:
            image = self._base(asked, say)
            if asked.get("steps"):
                image = await self._steps(image, asked["steps"], say)
        except BuildFailed as error:
            build.log.append(("error", str(error)))
            build.status, build.reason = "error", str(error)
            return
        except Exception as error:
            build.status, build.reason = "error", f"internal error: {error!r}"
            return
        template.image, template.start_cmd = image, asked.get("startCmd", "")
        say("Build finished")
        build.status = "ready"

    def _base(self, asked: dict[str, Any], say: Any) -> EmuImage:
        if "fromTemplate" in asked:
            found = self.find(asked["fromTemplate"])
            if found is None or found.image is None:
                raise BuildFailed(f"base template {asked['fromTemplate']} not found")
            return found.image
        ref, login = asked["fromImage"], asked.get("fromImageRegistry", {})
        self.pulls.append(dict(login))
        say(f"FROM {ref}")
        if "/private/" in ref and (login.get("username"), login.get("password")) != LOGIN:
            raise BuildFailed(f"failed to pull image {ref}: UNAUTHORIZED: authentication required")
        image = self.engine.find_image(ref)
        if image is None and ref.startswith(self.engine.registry):
            raise BuildFailed(f"failed to pull image {ref}: MANIFEST_UNKNOWN: manifest unknown")
        return image or EmuImage(ref)

    async def _steps(self, base: EmuImage, steps: list[dict[str, Any]], say: Any) -> EmuImage:
        """The steps as a Dockerfile of the engine's, each COPY from an upload of its own."""
        context = self.engine.tmp / f"context-{uuid.uuid4().hex}"
        lines, user = [f"FROM {base.ref}"], "root"
        for index, step in enumerate(steps):
            args = step["args"]
            if step["type"] == "USER":
                user = args[0]
                lines.append(f"USER {user}")
            elif step["type"] == "WORKDIR":
                lines.append(f"WORKDIR {args[0]}")
            elif step["type"] == "ENV":
                lines += [f"ENV {name}={json.dumps(text)}" for name, text in zip(args[::2], args[1::2], strict=True)]
            elif step["type"] == "RUN":
                who = args[1] if len(args) > 1 and args[1] else user
                lines += [f"USER {who}", f"RUN {json.dumps(['/bin/bash', '-l', '-c', args[0]])}", f"USER {user}"]
            else:
                source, target, owner, mode = [*args, "", ""][:4]
                folder = context / str(index)
                with tarfile.open(fileobj=io.BytesIO(self.files[step["filesHash"]])) as archive:
                    archive.extractall(folder, filter="fully_trusted")
                owner = owner.replace("root", "0")  # the engine takes numbers
                flags = f"--chown={owner} " if owner else ""
                flags += f"--chmod={mode} " if mode else ""
                there = posixpath.normpath(posixpath.join(str(index), source))
                lines.append(f"COPY {flags}{json.dumps([there, target])}")
        context.mkdir(exist_ok=True)
        return await self.engine.build("\n".join([*lines, ""]), Path(context), log=say)

    async def status(self, request: Request) -> Response:
        """How far a build is, with the log from an offset on."""
        template = self._of(request)
        build, models = self._build(request, template), self.face.models
        offset = int(request.query_params.get("logsOffset", 0))
        at = datetime.datetime.fromtimestamp(build.at, datetime.timezone.utc)
        entries = [
            models.BuildLogEntry(timestamp=at, message=text, level=models.LogLevel(level))
            for level, text in build.log[offset : offset + min(LINES, int(request.query_params.get("limit", LINES)))]
        ]
        fields: dict[str, Any] = {}
        if build.status == "error":
            fields["reason"] = models.BuildStatusReason(message=build.reason)
        reply = models.TemplateBuildInfo(
            logs=[], log_entries=entries, template_id=template.id, build_id=build.id,
            status=models.TemplateBuildStatus(build.status), **fields,
        )  # fmt: skip
        return JSONResponse(reply.to_dict())

    # ------------------------------------------------------------------------------------------------ what stands

    async def alias(self, request: Request) -> Response:
        """The id behind a name."""
        template = self._of(request)
        return JSONResponse(self.face.models.TemplateAliasResponse(template_id=template.id, public=False).to_dict())

    def _facts(self, template: Template) -> dict[str, Any]:
        at = datetime.datetime.fromtimestamp(template.at, datetime.timezone.utc)
        status = template.builds[-1].status if template.builds else "ready"
        return {
            "template_id": template.id, "build_id": template.builds[-1].id if template.builds else str(uuid.uuid4()),
            "cpu_count": template.cpus, "memory_mb": template.memory_mb, "disk_size_mb": 10_240, "public": False,
            "aliases": list(template.names), "names": [f"team-slug/{name}" for name in template.names],
            "created_at": at, "updated_at": at, "created_by": None, "last_spawned_at": None, "spawn_count": 0,
            "build_count": len(template.builds), "envd_version": "0.6.4",
            "build_status": self.face.models.TemplateBuildStatus(status),
        }  # fmt: skip

    async def list(self, request: Request) -> Response:
        """Templates without snapshots."""
        found = [template for template in self.templates.values() if not template.is_snapshot]
        return JSONResponse([self.face.models.Template(**self._facts(template)).to_dict() for template in found])

    async def info(self, request: Request) -> Response:
        """One template with its builds."""
        template, models = self._of(request), self.face.models
        builds = []
        for build in template.builds:
            at = datetime.datetime.fromtimestamp(build.at, datetime.timezone.utc)
            status = models.TemplateBuildStatus(build.status)
            fields = {"cpu_count": template.cpus, "memory_mb": template.memory_mb, "created_at": at, "updated_at": at}
            builds.append(models.TemplateBuild(build_id=uuid.UUID(build.id), status=status, **fields))
        facts = self.with_builds(self._facts(template))
        return JSONResponse(models.TemplateWithBuilds(**facts, builds=builds).to_dict())

    def with_builds(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The facts that `TemplateWithBuilds` takes."""
        return facts

    async def delete(self, request: Request) -> Response:
        """Forget a template or snapshot."""
        template = self._of(request)
        if any(box.data["template"] is template for box in self.engine.boxes.values()):
            raise FakeApiError(
                400, f"cannot delete template '{template.id}' because there are paused sandboxes using it"
            )
        del self.templates[template.id]
        return Response(status_code=204)
