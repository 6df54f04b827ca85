"""Images of emulated modal: registry refs, layers, builds from an uploaded context, snapshots."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.emulators.engine import LOGIN, BuildFailed, EmuImage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.emulators.engine import Engine

BUILDER = "2025.06"
SUCCESS, FAILURE = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, api_pb2.GenericResult.GENERIC_STATUS_FAILURE


@dataclass
class Build:
    """One image, from the request that first wanted it."""

    image_id: str
    lines: list[str] = field(default_factory=list)
    result: api_pb2.GenericResult | None = None
    image: EmuImage | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, line: str) -> None:
        self.lines.append(line if line.endswith("\n") else line + "\n")
        self.wake()

    def wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class Store:
    """Images, uploaded files, mounts and secrets of the workspace."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.builds: dict[str, Build] = {}
        self.by_content: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.mounts: dict[str, list[api_pb2.MountFile]] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.named: dict[str, str] = {}
        self.made = 0

    def mint(self, prefix: str) -> str:
        """A fresh id of modal's form."""
        self.made += 1
        return f"{prefix}-{hashlib.sha256(f'{prefix}{self.made}'.encode()).hexdigest()[:22]}"

    def get(self, image_id: str) -> EmuImage:
        """A built image."""
        build = self.builds.get(image_id)
        if build is None:
            raise GRPCError(Status.NOT_FOUND, f"Image {image_id} not found")
        if build.image is None:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Image {image_id} is not built")
        return build.image

    def keep(self, image: EmuImage, image_id: str) -> str:
        """A snapshot."""
        result = api_pb2.GenericResult(status=SUCCESS)
        self.builds[image_id] = Build(image_id, result=result, image=image)
        return image_id

    def drop(self, image_id: str) -> None:
        """Forget an image and what was built on it stays."""
        if self.builds.pop(image_id, None) is None:
            raise GRPCError(Status.NOT_FOUND, f"Image {image_id} not found")
        self.by_content = {content: kept for content, kept in self.by_content.items() if kept != image_id}
        self.engine.drop_image(image_id)

    def wanted(self, request: api_pb2.ImageGetOrCreateRequest) -> Build:
        """The build of this definition, begun when nobody wanted it before."""
        definition = request.image
        if not definition.dockerfile_commands:
            raise GRPCError(Status.INVALID_ARGUMENT, "no dockerfile commands")
        if request.builder_version != BUILDER:
            raise GRPCError(Status.INVALID_ARGUMENT, f"unknown image builder version {request.builder_version!r}")
        for base in definition.base_images:
            self.get(base.image_id)
        context = self.mounts.get(definition.context_mount_id, [])
        if definition.context_mount_id and definition.context_mount_id not in self.mounts:
            raise GRPCError(Status.NOT_FOUND, f"Mount {definition.context_mount_id} not found")
        content = hashlib.sha256(
            json.dumps(
                [
                    list(definition.dockerfile_commands),
                    sorted((base.docker_tag, base.image_id) for base in definition.base_images),
                    sorted((file.filename, file.sha256_hex, file.mode) for file in context),
                    bool(definition.image_registry_config.secret_id),
                ]
            ).encode()
        ).hexdigest()
        known = self.by_content.get(content)
        failed = known is not None and (result := self.builds[known].result) is not None and result.status == FAILURE
        if known is not None and not request.force_build and not failed:
            return self.builds[known]
        build = Build(self.mint("im"))
        self.builds[build.image_id] = build
        self.by_content[content] = build.image_id
        self.engine.keep(self._run(build, definition, context))
        return build

    async def _run(self, build: Build, definition: api_pb2.Image, context: list[api_pb2.MountFile]) -> None:
        try:
            image = await self._make(build, definition, context)
        except BuildFailed as error:
            build.result = api_pb2.GenericResult(status=FAILURE, exception=str(error))
        except Exception as error:
            build.result = api_pb2.GenericResult(status=FAILURE, exception=f"{type(error).__name__}: {error}")
        else:
            build.image = image.but(ref=build.image_id)
            self.engine.images[build.image_id] = build.image
            build.result = api_pb2.GenericResult(status=SUCCESS)
        build.wake()

    async def _make(self, build: Build, definition: api_pb2.Image, context: list[api_pb2.MountFile]) -> EmuImage:
        bases = {base.docker_tag: self.get(base.image_id) for base in definition.base_images}
        commands = [line for line in definition.dockerfile_commands if line.strip() and not line.startswith("#")]
        build.say(f"Building image {build.image_id}")
        for line in commands:
            build.say(f"=> {line}")
        if commands[0].startswith("FROM ") and len(commands) == 1:
            return self._pull(commands[0].split()[1], bases, definition)
        if len(commands) == 2 and commands[1].startswith("ENTRYPOINT "):
            below = self._pull(commands[0].split()[1], bases, definition)
            # As in docker: a new ENTRYPOINT clears the CMD that was inherited.
            return below.but(entrypoint=tuple(json.loads(commands[1].partition(" ")[2])), cmd=())
        text = "\n".join(definition.dockerfile_commands)
        for tag, image in bases.items():
            text = re.sub(rf"(?im)^FROM {re.escape(tag)}\s*$", f"FROM {image.ref}", text)
        folder = await asyncio.to_thread(self._context, build, context)
        return await self.engine.build(text, folder, log=build.say, ref=build.image_id)

    def _pull(self, ref: str, bases: dict[str, EmuImage], definition: api_pb2.Image) -> EmuImage:
        if ref in bases:
            return bases[ref]
        found = self.engine.find_image(ref)
        if found is None:
            raise BuildFailed(f"{ref}: manifest unknown")
        if "/private/" in ref:
            login = self.secrets.get(definition.image_registry_config.secret_id, {})
            static = api_pb2.REGISTRY_AUTH_TYPE_STATIC_CREDS
            told = (login.get("REGISTRY_USERNAME"), login.get("REGISTRY_PASSWORD"))
            if definition.image_registry_config.registry_auth_type != static or told != LOGIN:
                raise BuildFailed(f"pull access denied for {ref}")
        return found

    def _context(self, build: Build, files: list[api_pb2.MountFile]) -> Path:
        root = self.engine.tmp / f"context-{build.image_id}"
        for file in files:
            target = root / file.filename.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.files[file.sha256_hex])
            target.chmod(file.mode & 0o777 or 0o644)
        root.mkdir(exist_ok=True)
        return root

    def env_of(self, sources: Any, secret_ids: Any) -> dict[str, str]:
        """Variables that secrets and inline sources give, in their order."""
        env: dict[str, str] = {}
        for secret_id in secret_ids:
            env |= self.secret(secret_id)
        for source in sources:
            env |= dict(source.env.contents) if source.HasField("env") else self.secret(source.secret_id)
        return env

    def secret(self, secret_id: str) -> dict[str, str]:
        """What a secret holds."""
        if secret_id not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"Secret {secret_id} not found")
        return self.secrets[secret_id]


def base_metadata() -> Any:
    """Nothing is known of a foreign image."""
    return api_pb2.ImageMetadata(image_builder_version=BUILDER)
