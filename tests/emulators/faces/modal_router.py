"""The worker's service of emulated modal: commands in a sandbox, its output, snapshots of its files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_grpc
from modal_proto import task_command_router_pb2 as pb

from tests.emulators.engine import BoxGone
from tests.emulators.faces.modal_wire import concrete, strict, unary

if TYPE_CHECKING:
    from tests.emulators.engine import Proc
    from tests.emulators.faces.modal import ModalFace, Record

_LINGER_S = 0.1
_PIECE = 1 << 18

Base: Any = concrete(task_command_router_grpc.TaskCommandRouterBase)


class Output:
    """One stream of one command: what it wrote so far, read from any offset."""

    def __init__(self) -> None:
        self.data, self.ended, self._news = bytearray(), False, asyncio.Event()

    def add(self, data: bytes) -> None:
        self.data += data
        self.wake()

    def wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def more(self, offset: int) -> bytes:
        """From ``offset`` on; empty at the end."""
        while True:
            news = self._news
            if len(self.data) > offset:
                return bytes(self.data[offset : offset + _PIECE])
            if self.ended:
                return b""
            await news.wait()


class Exec:
    """One command."""

    def __init__(self, proc: Proc) -> None:
        self.proc, self.out, self.err = proc, Output(), Output()
        self.written, self.closed = 0, False

    async def follow(self) -> None:
        """UNVERIFIED: the streams end shortly after the command, also when a process it left holds the pipes."""
        pumps = [asyncio.ensure_future(self._pump(self.proc.stdout, self.out))]
        pumps.append(asyncio.ensure_future(self._pump(self.proc.stderr, self.err)))
        await self.proc.wait()
        before = -1
        while before != (before := len(self.out.data) + len(self.err.data)):
            await asyncio.wait(pumps, timeout=_LINGER_S)
        for pump in pumps:
            pump.cancel()
        for stream in (self.out, self.err):
            stream.ended = True
            stream.wake()

    async def _pump(self, stream: Any, output: Output) -> None:
        async for data in stream:
            output.add(data)


class Router(Base):
    """The service whose address and JWT the control plane gives out for one task."""

    def __init__(self, face: ModalFace) -> None:
        self.face, self.engine, self.calls = face, face.engine, face.calls
        self.execs: dict[tuple[str, str], Exec] = {}

    def authorize(self, name: str, metadata: Any, request: Any) -> None:
        """A bearer token of the very task."""
        scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
        task = self.face.workers.get(token) if scheme == "Bearer" else None
        if task is None:
            raise GRPCError(Status.UNAUTHENTICATED, "invalid JWT")
        if getattr(request, "task_id", task) != task:
            raise GRPCError(Status.PERMISSION_DENIED, "the JWT is for another task")

    def task(self, task_id: str) -> Record:
        record = self.face.by_task(task_id)
        if not record.running:
            raise GRPCError(Status.NOT_FOUND, f"task {task_id} has finished")
        return record

    def command(self, request: Any) -> Exec:
        found = self.execs.get((request.task_id, request.exec_id))
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"exec {request.exec_id} not found")
        return found

    @unary("TaskExecStart")
    async def TaskExecStart(self, request: Any) -> Any:
        record = self.task(request.task_id)
        known = (request.task_id, request.exec_id)
        if known in self.execs:
            return pb.TaskExecStartResponse()
        if not request.command_args:
            raise GRPCError(Status.INVALID_ARGUMENT, "no command")
        if request.workdir and not request.workdir.startswith("/"):
            raise GRPCError(Status.INVALID_ARGUMENT, "workdir must be absolute")
        env = {**record.box.env, **self.face.store.env_of(request.secret_sources, ())}
        async with self.engine.hooked("exec", id=record.id):
            try:
                # UNVERIFIED: commands run as the image's user, in its working directory.
                proc = await record.box.exec(
                    list(request.command_args),
                    env=env,
                    cwd=request.workdir or record.box.workdir,
                    user=record.box.user,
                    stdin=True,
                )
            except BoxGone:
                raise GRPCError(Status.NOT_FOUND, f"task {request.task_id} has finished") from None
            except OSError as error:
                # UNVERIFIED: how a program that does not exist is told.
                raise GRPCError(Status.INVALID_ARGUMENT, f"{error.filename}: {error.strerror}") from None
        self.execs[known] = Exec(proc)
        self.engine.keep(self.execs[known].follow())
        return pb.TaskExecStartResponse()

    async def TaskExecStdioRead(self, stream: Any) -> None:
        request = await stream.recv_message()
        strict(request)
        self.authorize("TaskExecStdioRead", stream.metadata, request)
        found = self.command(request)
        out = found.out if request.file_descriptor == pb.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT else found.err
        offset = request.offset
        while data := await self._alive(request.task_id, out.more(offset)):
            await stream.send_message(pb.TaskExecStdioReadResponse(data=data))
            offset += len(data)

    async def _alive(self, task_id: str, work: Any) -> Any:
        """``work``, unless the sandbox ends first: then everything about it is not found."""
        record = self.face.by_task(task_id)
        wanted, end = asyncio.ensure_future(work), asyncio.ensure_future(record.done.wait())
        try:
            await asyncio.wait({wanted, end}, return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                raise GRPCError(Status.NOT_FOUND, f"task {task_id} has finished")
            return wanted.result()
        finally:
            wanted.cancel()
            end.cancel()

    @unary("TaskExecWait")
    async def TaskExecWait(self, request: Any) -> Any:
        code = await self._alive(request.task_id, self.command(request).proc.wait())
        return pb.TaskExecWaitResponse(signal=code - 128) if code > 128 else pb.TaskExecWaitResponse(code=code)

    @unary("TaskExecPoll")
    async def TaskExecPoll(self, request: Any) -> Any:
        code = self.command(request).proc.code
        if code is None:
            return pb.TaskExecPollResponse()
        return pb.TaskExecPollResponse(signal=code - 128) if code > 128 else pb.TaskExecPollResponse(code=code)

    @unary("TaskExecStdinWrite")
    async def TaskExecStdinWrite(self, request: Any) -> Any:
        found = self.command(request)
        if request.offset > found.written:
            raise GRPCError(Status.INVALID_ARGUMENT, f"offset {request.offset}, expected {found.written}")
        data = request.data[found.written - request.offset :]
        if data and (found.closed or found.proc.code is not None):
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed")
        try:
            if data:
                await self._alive(request.task_id, found.proc.write(data))
        except BrokenPipeError:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from None
        found.written += len(data)
        if request.eof and not found.closed:
            found.closed = True
            await found.proc.close_stdin()
        return pb.TaskExecStdinWriteResponse()

    @unary("TaskExecStdinStatus")
    async def TaskExecStdinStatus(self, request: Any) -> Any:
        found = self.command(request)
        return pb.TaskExecStdinStatusResponse(num_bytes_written=found.written, closed=found.closed)

    async def SandboxStdioReadV2(self, stream: Any) -> None:
        request = await stream.recv_message()
        strict(request)
        self.authorize("SandboxStdioReadV2", stream.metadata, request)
        record, offset = self.face.by_task(request.task_id), 0
        if request.file_descriptor != pb.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT:
            return  # the engine keeps one log for both
        async for chunk in record.box.log.follow():
            part = chunk[max(0, request.offset - offset) :]
            if part:
                start = max(request.offset, offset)
                await stream.send_message(pb.SandboxStdioReadV2Response(data=part, starting_offset=start))
            offset += len(chunk)

    @unary("TaskSnapshotFilesystem")
    async def TaskSnapshotFilesystem(self, request: Any) -> Any:
        record = self.task(request.task_id)
        if not request.ttl_seconds:
            raise GRPCError(Status.INVALID_ARGUMENT, "ttl_seconds must be set")
        image_id = self.face.store.mint("im")
        box = record.box
        image = await self.engine.snapshot(box, image_id)
        # Variables that were given to the sandbox are no part of its files.
        image = image.but(env=dict(box.image.env), workdir=box.image.workdir)
        self.engine.images[image_id] = image
        self.face.store.keep(image, image_id)
        return pb.TaskSnapshotFilesystemResponse(image_id=image_id)
