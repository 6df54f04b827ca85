"""The control plane of emulated modal: apps, images, secrets and sandboxes of both families."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from modal_proto import api_grpc, api_pb2

from tests.emulators.engine import QuotaReached
from tests.emulators.faces.modal_images import BUILDER, base_metadata
from tests.emulators.faces.modal_wire import concrete, jwt, strict, unary

if TYPE_CHECKING:
    from tests.emulators.faces.modal import ModalFace, Record

TOKEN_ID, TOKEN_SECRET = "ak-emulated0000000000000", "as-emulated-secret-0001"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,64}\Z")
_TAG = re.compile(r"[a-zA-Z0-9._-]{1,63}\Z")
_DAY_S, _TOKEN_S = 86_400, 1200.0
_TERMINATED = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED

Base: Any = concrete(api_grpc.ModalClientBase)


class Control(Base):
    """The service that ``MODAL_SERVER_URL`` names. V1 and V2 differ in names, the auth token and what they allow."""

    def __init__(self, face: ModalFace) -> None:
        self.face, self.engine, self.store, self.calls = face, face.engine, face.store, face.calls
        self.apps: dict[str, str] = {}
        self.auth: dict[str, float] = {}
        self.issued = 0

    def authorize(self, name: str, metadata: Any, request: Any) -> None:
        """Token pair on every call; the short-lived token on those of the newer family."""
        if (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != (TOKEN_ID, TOKEN_SECRET):
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        if name.endswith("V2") or name == "SandboxGetCommandRouterAccess":
            ends = self.auth.get(str(metadata.get("x-modal-auth-token")))
            if ends is None or ends < time.time():
                raise GRPCError(Status.UNAUTHENTICATED, "auth token missing or expired")

    # --------------------------------------------------------------------------------------- workspace and apps

    @unary("ClientHello")
    async def ClientHello(self, request: Any) -> Any:
        return api_pb2.ClientHelloResponse()

    @unary("AuthTokenGet")
    async def AuthTokenGet(self, request: Any) -> Any:
        ends = time.time() + _TOKEN_S
        token = jwt(ends, n=len(self.auth))
        self.auth[token] = ends
        return api_pb2.AuthTokenGetResponse(token=token)

    @unary("EnvironmentGetOrCreate")
    async def EnvironmentGetOrCreate(self, request: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER)
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-emulated", metadata=metadata)

    @unary("AppGetOrCreate")
    async def AppGetOrCreate(self, request: Any) -> Any:
        if not _NAME.match(request.app_name):
            raise GRPCError(Status.INVALID_ARGUMENT, f"invalid app name {request.app_name!r}")
        key = f"{request.environment_name}/{request.app_name}"
        if key not in self.apps:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App {request.app_name!r} not found")
            self.apps[key] = self.store.mint("ap")
        return api_pb2.AppGetOrCreateResponse(app_id=self.apps[key])

    def app(self, app_id: str) -> str:
        if app_id not in self.apps.values():
            raise GRPCError(Status.NOT_FOUND, f"App {app_id!r} not found")
        return app_id

    @unary("SecretGetOrCreate")
    async def SecretGetOrCreate(self, request: Any) -> Any:
        if request.deployment_name:
            secret_id = self.store.named.get(request.deployment_name)
            if secret_id is None:
                raise GRPCError(Status.NOT_FOUND, f"Secret {request.deployment_name!r} not found")
        else:
            secret_id = self.store.mint("st")
            self.store.secrets[secret_id] = dict(request.env_dict)
        keys = sorted(self.store.secrets[secret_id])
        metadata = api_pb2.SecretMetadata(name=request.deployment_name, keys=keys)
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret_id, metadata=metadata)

    # --------------------------------------------------------------------------------------------------- images

    @unary("ImageGetOrCreate")
    async def ImageGetOrCreate(self, request: Any) -> Any:
        self.app(request.app_id)
        build = self.store.wanted(request)
        return api_pb2.ImageGetOrCreateResponse(image_id=build.image_id, result=build.result, metadata=base_metadata())

    async def ImageJoinStreaming(self, stream: Any) -> None:
        request = await stream.recv_message()
        strict(request)
        self.authorize("ImageJoinStreaming", stream.metadata, request)
        build = self.store.builds.get(request.image_id)
        if build is None:
            raise GRPCError(Status.NOT_FOUND, f"Image {request.image_id} not found")
        said = int(request.last_entry_id or 0)
        while True:
            news, result = build.news, build.result
            for number, line in enumerate(build.lines[said:], said + 1):
                log = api_pb2.TaskLogs(data=line, file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT)
                await stream.send_message(api_pb2.ImageJoinStreamingResponse(task_logs=[log], entry_id=str(number)))
                said = number
            if result is not None:
                await stream.send_message(
                    api_pb2.ImageJoinStreamingResponse(result=result, eof=True, metadata=base_metadata())
                )
                return
            await news.wait()

    @unary("ImageFromId")
    async def ImageFromId(self, request: Any) -> Any:
        self.store.get(request.image_id)
        return api_pb2.ImageFromIdResponse(image_id=request.image_id, metadata=base_metadata())

    @unary("ImageDelete")
    async def ImageDelete(self, request: Any) -> Any:
        from google.protobuf.empty_pb2 import Empty

        self.store.drop(request.image_id)
        return Empty()

    @unary("MountBatchedCheckExistence")
    async def MountBatchedCheckExistence(self, request: Any) -> Any:
        missing = [sha for sha in request.sha256_hex_hashes if sha not in self.store.files]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    @unary("MountPutFile")
    async def MountPutFile(self, request: Any) -> Any:
        import hashlib

        data = self.face.blobs.pop(request.data_blob_id) if request.data_blob_id else request.data
        if request.data or request.data_blob_id:
            if hashlib.sha256(data).hexdigest() != request.sha256_hex:
                raise GRPCError(Status.INVALID_ARGUMENT, "content does not match its digest")
            self.store.files[request.sha256_hex] = data
        elif request.sha256_hex == hashlib.sha256(b"").hexdigest():
            self.store.files[request.sha256_hex] = b""
        return api_pb2.MountPutFileResponse(exists=request.sha256_hex in self.store.files)

    @unary("BlobCreate")
    async def BlobCreate(self, request: Any) -> Any:
        blob_id = self.store.mint("bl")
        urls = api_pb2.UploadUrlList(items=[f"{self.face.url}/blob/{blob_id}"])
        return api_pb2.BlobCreateResponse(blob_ids=[blob_id], upload_urls=urls)

    @unary("MountGetOrCreate")
    async def MountGetOrCreate(self, request: Any) -> Any:
        lost = [file.filename for file in request.files if file.sha256_hex not in self.store.files]
        if lost:
            raise GRPCError(Status.FAILED_PRECONDITION, f"files were not uploaded: {lost}")
        mount_id = self.store.mint("mo")
        self.store.mounts[mount_id] = list(request.files)
        metadata = api_pb2.MountHandleMetadata(content_checksum_sha256_hex="0" * 64)
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id, handle_metadata=metadata)

    # ------------------------------------------------------------------------------------------------ sandboxes

    @unary("SandboxCreateV2", once=True)
    async def SandboxCreateV2(self, request: Any) -> Any:
        if request.definition.resources.gpu_config.gpu_type:
            raise GRPCError(Status.INVALID_ARGUMENT, "GPUs are not supported by V2 sandboxes")
        record = await self._create(request, "V2", self.store.env_of(request.secret_sources, ()))
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=record.id, task_id=record.task_id, metadata=api_pb2.SandboxHandleMetadata(app_id=record.app_id)
        )

    @unary("SandboxCreate", once=True)
    async def SandboxCreate(self, request: Any) -> Any:
        record = await self._create(request, "V1", self.store.env_of((), request.definition.secret_ids))
        return api_pb2.SandboxCreateResponse(
            sandbox_id=record.id, metadata=api_pb2.SandboxHandleMetadata(app_id=record.app_id)
        )

    async def _create(self, request: Any, family: str, env: dict[str, str]) -> Record:
        wanted = request.definition
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        self.app(request.app_id)
        if not 1 <= wanted.timeout_secs <= _DAY_S:
            raise GRPCError(Status.INVALID_ARGUMENT, f"timeout must be between 1 and {_DAY_S} seconds")
        if wanted.name and not _NAME.match(wanted.name):
            raise GRPCError(Status.INVALID_ARGUMENT, f"invalid name {wanted.name!r}")
        if bad := [name for name, value in tags.items() if not _TAG.match(name) or not _TAG.match(value)]:
            raise GRPCError(Status.INVALID_ARGUMENT, f"invalid tags {bad}")
        size = wanted.resources
        if size.milli_cpu_max and size.milli_cpu_max < size.milli_cpu:
            raise GRPCError(Status.INVALID_ARGUMENT, "cpu limit below request")
        image = self.store.get(wanted.image_id)
        await self.engine.hook("create", "before", labels=tags, name=wanted.name)
        if any(one.name == wanted.name and one.running for one in self.face.records.values() if one.name):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name {wanted.name!r} already exists")
        # Arguments replace CMD and follow ENTRYPOINT.
        argv = (*image.entrypoint, *(wanted.entrypoint_args or image.cmd))
        if not argv:
            raise GRPCError(Status.INVALID_ARGUMENT, "the image has no command")
        try:
            record = await self.face.start(request, family, image, argv, env, tags)
        except QuotaReached as error:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"sandbox limit reached: {error}") from None
        await self.engine.hook("create", "after")
        return record

    async def _wait(self, request: Any) -> Any:
        if request.timeout == 0:
            async with self.engine.hooked("info", id=request.sandbox_id):
                record = self.face.record(request.sandbox_id)
        else:
            record = self.face.record(request.sandbox_id)
            await asyncio.wait({asyncio.ensure_future(record.done.wait())}, timeout=request.timeout)
        metadata = api_pb2.SandboxHandleMetadata(app_id=record.app_id)
        return api_pb2.SandboxWaitResponse(result=record.result, metadata=metadata)

    async def _list(self, request: Any) -> Any:
        self.app(request.app_id)
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        half = None
        if not request.before_timestamp:
            hooked = await self.engine.hook("find" if "oe-key" in wanted else "list", "before")
            half = hooked.half
        elif self.face.breaks.pop(request.app_id, False):
            self.face.breaks[request.app_id] = True
            raise GRPCError(Status.INTERNAL, "listing broke off")
        shown = {box.id for box in self.engine.visible()}
        rows = [
            row
            for row in sorted(self.face.records.values(), key=lambda row: -row.created_at)
            if row.running
            and row.id in shown
            and row.app_id == request.app_id
            and (not request.before_timestamp or row.created_at < request.before_timestamp)
            and wanted.items() <= row.tags.items()
        ][: half or 5]
        self.face.breaks[request.app_id] = half is not None
        if not request.before_timestamp:
            await self.engine.hook("find" if "oe-key" in wanted else "list", "after")
        return api_pb2.SandboxListResponse(
            sandboxes=[
                api_pb2.SandboxInfo(
                    id=row.id,
                    created_at=row.created_at,
                    app_id=row.app_id,
                    metadata=api_pb2.SandboxHandleMetadata(app_id=row.app_id),
                    tags=[api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in row.tags.items()],
                )
                for row in rows
            ]
        )

    async def _by_name(self, request: Any, family: str) -> Any:
        app_id = self.apps.get(f"{request.environment_name}/{request.app_name}")
        for record in self.face.records.values():
            if (record.app_id, record.name, record.family) == (app_id, request.sandbox_name, family) and record.running:
                metadata = api_pb2.SandboxHandleMetadata(app_id=record.app_id)
                return api_pb2.SandboxGetFromNameResponse(sandbox_id=record.id, metadata=metadata)
        raise GRPCError(Status.NOT_FOUND, f"no running Sandbox is named {request.sandbox_name!r}")

    @unary("SandboxGetFromName")
    async def SandboxGetFromName(self, request: Any) -> Any:
        return await self._by_name(request, "V1")

    @unary("SandboxGetFromNameV2")
    async def SandboxGetFromNameV2(self, request: Any) -> Any:
        return await self._by_name(request, "V2")

    async def _tags(self, request: Any) -> Any:
        if request.sandbox_id in self.face.vanished:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {request.sandbox_id} not found")
        tags = self.face.record(request.sandbox_id).tags
        return api_pb2.SandboxTagsGetResponse(
            tags=[api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]
        )

    async def _terminate(self, request: Any) -> Any:
        record = self.face.record(request.sandbox_id)
        async with self.engine.hooked("delete", id=record.id):
            if record.running:
                record.finish(api_pb2.GenericResult(status=_TERMINATED))
                await self.engine.delete(record.id)
        return api_pb2.SandboxTerminateResponse()

    async def _task_id(self, request: Any) -> Any:
        record = self.face.record(request.sandbox_id)
        if not record.running:
            return api_pb2.SandboxGetTaskIdResponse(task_result=record.result)
        return api_pb2.SandboxGetTaskIdResponse(task_id=record.task_id)

    async def _tunnels(self, request: Any) -> Any:
        return api_pb2.SandboxGetTunnelsResponse(tunnels=self.face.live(request.sandbox_id).tunnels)

    async def _connect_token(self, request: Any) -> Any:
        record = self.face.live(request.sandbox_id)
        self.issued += 1
        # UNVERIFIED: that it is a JWT, and how long it lives.
        token = jwt(self.engine.clock.now() + 3600, sandbox=record.id, port=request.port, n=self.issued)
        self.face.tokens[token] = (record.id, request.port or 8080, f"connect-{self.issued}")
        return api_pb2.SandboxCreateConnectTokenResponse(url=self.face.url, token=token)

    async def _access(self, record: Record) -> dict[str, str]:
        token = jwt(time.time() + _TOKEN_S, task=record.task_id, n=len(self.face.workers))
        self.face.workers[token] = record.task_id
        return {"url": self.face.router_url, "jwt": token}

    @unary("SandboxGetCommandRouterAccess")
    async def SandboxGetCommandRouterAccess(self, request: Any) -> Any:
        return api_pb2.SandboxGetCommandRouterAccessResponse(
            **await self._access(self.face.live(request.sandbox_id, gone=Status.FAILED_PRECONDITION))
        )

    @unary("TaskGetCommandRouterAccess")
    async def TaskGetCommandRouterAccess(self, request: Any) -> Any:
        record = self.face.by_task(request.task_id)
        return api_pb2.TaskGetCommandRouterAccessResponse(**await self._access(record))

    @unary("AppFetchLogs")
    async def AppFetchLogs(self, request: Any) -> Any:
        items = self.face.log(request)[-(request.limit or None or 20_000) :]
        return api_pb2.AppFetchLogsResponse(batches=[api_pb2.TaskLogsBatch(items=items)] if items else [])

    @unary("AppCountLogs")
    async def AppCountLogs(self, request: Any) -> Any:
        number = len(self.face.log(request))
        bucket = api_pb2.AppCountLogsResponse.LogBucket(bucket_start_at=request.since, stdout_logs=number)
        return api_pb2.AppCountLogsResponse(app_id=request.app_id, buckets=[bucket] if number else [])

    async def SandboxGetLogs(self, stream: Any) -> None:
        request = await stream.recv_message()
        strict(request)
        self.authorize("SandboxGetLogs", stream.metadata, request)
        record, number = self.face.record(request.sandbox_id), 0
        if request.file_descriptor == api_pb2.FILE_DESCRIPTOR_STDOUT:
            async for chunk in record.box.log.follow():
                number += 1
                item = api_pb2.TaskLogs(data=chunk.decode(errors="replace"))
                await stream.send_message(api_pb2.TaskLogsBatch(entry_id=str(number), items=[item]))
        await stream.send_message(api_pb2.TaskLogsBatch(entry_id=str(number), eof=True))


def _both(name: str, work: str, once: bool = False) -> None:
    """The same call of both families."""
    for one in (name, f"{name}V2"):

        async def handler(self: Any, request: Any, work: str = work) -> Any:
            return await getattr(self, work)(request)

        setattr(Control, one, unary(one, once=once)(handler))


_both("SandboxWait", "_wait", once=True)
_both("SandboxList", "_list", once=True)
_both("SandboxTagsGet", "_tags")
_both("SandboxTerminate", "_terminate", once=True)
_both("SandboxGetTaskId", "_task_id")
_both("SandboxGetTunnels", "_tunnels")
_both("SandboxCreateConnectToken", "_connect_token")
