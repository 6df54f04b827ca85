"""Emulated modal, spoken to by the real SDK: two gRPC services, connect tokens at the front, tunnels beside it.

``MODAL_SERVER_URL`` leads the SDK here; the worker's address, tunnels and connect URLs come in replies. What modal's
stubs do not say and nobody could look at is marked UNVERIFIED where it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.emulators.engine import BoxGone, Face, PortRoute, Refusal, RequestHead
from tests.emulators.faces.modal_api import Control
from tests.emulators.faces.modal_images import Store
from tests.emulators.faces.modal_router import Router
from tests.emulators.faces.modal_wire import Calls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request

    from tests.emulators.engine import Box, EmuImage, Engine

_ALPHABET = string.digits + string.ascii_letters
_UPPER = string.digits + string.ascii_uppercase
TIMEOUT = api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT
TERMINATED = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED


@dataclass
class Record:
    """One sandbox, also after its end."""

    id: str
    task_id: str
    app_id: str
    name: str
    family: str
    tags: dict[str, str]
    definition: Any
    box: Box
    created_at: float
    ends_at: float
    result: Any = None
    tunnels: list[Any] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    servers: list[Any] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.result is None

    def finish(self, result: Any) -> None:
        """It has ended; the first word counts."""
        if self.result is None:
            self.result = result
            self.done.set()


class Service(Server):
    """A gRPC server that can also close the connections that clients left open."""

    def __init__(self, handler: Any) -> None:
        super().__init__([handler], status_details_codec=custom_detail_codec)
        self._protocols: list[Any] = []

    def _protocol_factory(self) -> Any:
        self._protocols.append(super()._protocol_factory())
        return self._protocols[-1]

    def connected(self) -> list[Any]:
        """Transports of the connections that are open."""
        found = (getattr(getattr(one, "connection", None), "_transport", None) for one in self._protocols)
        return [transport for transport in found if transport is not None and not transport.is_closing()]

    def abort(self) -> None:
        """Cut them all."""
        for transport in self.connected():
            transport.abort()


class ModalFace(Face):
    """The vendor.

    Attributes:
        records: Sandboxes by id.
        tokens: Connect tokens to (sandbox id, port, label).
        workers: JWTs of the worker's service to the task.
        calls: What came in.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.store, self.calls = Store(engine), Calls()
        self.records: dict[str, Record] = {}
        self.tokens: dict[str, tuple[str, int, str]] = {}
        self.workers: dict[str, str] = {}
        self.breaks: dict[str, bool] = {}
        self.blobs: dict[str, bytes] = {}
        self.url = self.router_url = self.server_url = ""
        self.tls: ssl.SSLContext | None = None
        self.heeds_user = True  # UNVERIFIED
        self.vanished: set[str] = set()
        self.services: list[Service] = []
        self.app = Starlette(routes=[Route("/blob/{id}", self.put_blob, methods=["PUT"])])
        self.control, self.router = Control(self), Router(self)

    @contextlib.contextmanager
    def serving(self, url: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
        """Run both services; gives the address of the control plane.

        Args:
            url: The front's.
            tls: For tunnels.
        """
        self.url, self.tls = url, tls
        servers = self.engine.call(self._start())
        try:
            yield self.server_url
        finally:
            self.engine.call(self._stop(servers))

    async def _start(self) -> list[Service]:
        servers, urls = self.services, []
        for service in (self.control, self.router):
            server = Service(service)
            await server.start("127.0.0.1", 0)
            assert server._server is not None
            urls.append(f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}")
            servers.append(server)
        self.server_url, self.router_url = urls
        return servers

    async def _stop(self, servers: list[Service]) -> None:
        for record in self.records.values():
            self._close(record)
        for server in servers:
            server.close()
            server.abort()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(server.wait_closed(), 5)

    async def put_blob(self, request: Request) -> Response:
        """Where the SDK puts large files."""
        if request.path_params["id"][:3] != "bl-":
            return Response(status_code=404)
        data = self.blobs[request.path_params["id"]] = await request.body()
        import hashlib

        return Response(headers={"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    # ------------------------------------------------------------------------------------------------ sandboxes

    def record(self, sandbox_id: str) -> Record:
        """A sandbox in any state."""
        found = self.records.get(sandbox_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox_id} not found")
        return found

    def live(self, sandbox_id: str, gone: Status = Status.NOT_FOUND) -> Record:
        """A running one. UNVERIFIED: with which status the others are refused."""
        found = self.record(sandbox_id)
        if not found.running:
            raise GRPCError(gone, f"Sandbox {sandbox_id} has already finished")
        return found

    def by_task(self, task_id: str) -> Record:
        """A sandbox by its task."""
        for record in self.records.values():
            if record.task_id == task_id:
                return record
        raise GRPCError(Status.NOT_FOUND, f"task {task_id} not found")

    async def start(
        self, request: Any, family: str, image: EmuImage, argv: Any, env: Mapping[str, str], tags: dict[str, str]
    ) -> Record:
        """Make one; ids of the older family have exactly 22 characters after the prefix."""
        wanted = request.definition
        length, letters, end = (22, _ALPHABET, "") if family == "V1" else (26, _UPPER, "V")
        name = "".join(secrets.choice(letters) for _ in range(length))
        data = {
            "network": (wanted.network_access.network_access_type, list(wanted.network_access.allowed_cidrs)),
            "domains": list(wanted.network_access.allowed_domains),
            "resources": wanted.resources,
            "runtime": wanted.runtime,
            "name": wanted.name,
            "argv": tuple(argv),
            "asked": tuple(wanted.entrypoint_args),
        }
        box = await self.engine.create(
            image,
            id=f"sb-{name}",
            argv=argv,
            env=env,
            user=None if self.heeds_user else "0",
            workdir=wanted.workdir or None,
            labels=tags,
            ttl_s=float(wanted.timeout_secs),
            data=data,
        )
        now = self.engine.clock.now()
        record = Record(
            box.id,
            f"ta-{name}{end}",
            request.app_id,
            wanted.name,
            family,
            tags,
            wanted,
            box,
            now,
            now + wanted.timeout_secs,
        )
        self.records[record.id] = record
        await self._open_tunnels(record, wanted.open_ports.ports)
        self.engine.keep(self._follow(record))
        return record

    async def _follow(self, record: Record) -> None:
        """A sandbox ends with its main process, its timeout, or its deletion."""
        box = record.box
        assert box.main is not None
        waits = [asyncio.ensure_future(box.gone.wait()), asyncio.ensure_future(box.main.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.engine.clock.now() >= record.ends_at:
            record.finish(api_pb2.GenericResult(status=TIMEOUT))
        elif box.state == "stopped" or record.id not in self.engine.boxes:
            record.finish(api_pb2.GenericResult(status=TERMINATED))
        else:
            async for _ in box.log.follow():
                pass  # until all it wrote is there
            code = box.main.code or 0
            success, failure = (
                api_pb2.GenericResult.GENERIC_STATUS_SUCCESS,
                api_pb2.GenericResult.GENERIC_STATUS_FAILURE,
            )
            record.finish(api_pb2.GenericResult(status=failure if code else success, exitcode=code))
            await self.engine.delete(record.id)
        if not box.log.ended:
            box.log.end()
        self._close(record)

    def _close(self, record: Record) -> None:
        for server in record.servers:
            server.close()
        record.servers.clear()

    def log(self, request: Any) -> list[Any]:
        """Entries of one task, a line each."""
        self.control.app(request.app_id)
        record = self.by_task(request.task_id)
        lines = bytes(record.box.log.data).splitlines(keepends=True)
        return [api_pb2.TaskLogs(data=line.decode(errors="replace"), timestamp=record.created_at) for line in lines]

    # ---------------------------------------------------------------------------------------------------- ports

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        """By connect token alone: it says which port of which sandbox."""
        if head.path.startswith("/blob/"):
            return None
        scheme, _, token = (head.get("authorization") or "").partition(" ")
        if scheme != "Bearer" or token not in self.tokens:
            return Refusal(401, {}, b"modal: invalid or missing connect token\n")
        sandbox_id, port, label = self.tokens[token]
        record = self.records[sandbox_id]
        if not record.running:
            return Refusal(404, {}, b"modal: sandbox has finished\n")
        # UNVERIFIED: that the header stays at the proxy.
        return PortRoute(
            record.box, port, token=label, strip=frozenset({"authorization"}), add={"X-Verified-User-Data": ""}
        )

    def expire(self, sandbox_id: str) -> None:
        """No connect token of the sandbox is good any more."""
        self.tokens = {token: owner for token, owner in self.tokens.items() if owner[0] != sandbox_id}

    async def _open_tunnels(self, record: Record, ports: Any) -> None:
        for spec in ports:

            async def serve(reader: Any, writer: Any, port: int = spec.port) -> None:
                await self._splice(record, port, reader, writer)

            tls = None if spec.unencrypted else self.tls
            server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
            record.servers.append(server)
            number = server.sockets[0].getsockname()[1]
            if spec.unencrypted:
                data = api_pb2.TunnelData(
                    host="127.0.0.1",
                    port=number,
                    unencrypted_host="127.0.0.1",
                    unencrypted_port=number,
                    container_port=spec.port,
                )
            else:
                data = api_pb2.TunnelData(host="127.0.0.1", port=number, container_port=spec.port)
            record.tunnels.append(data)

    async def _splice(self, record: Record, port: int, reader: Any, writer: Any) -> None:
        async def pump(source: Any, sink: Any) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()

        try:
            up_reader, up_writer = await record.box.connect(port)
        except (OSError, BoxGone):
            writer.transport.abort()
            return
        pumps = [asyncio.ensure_future(pump(reader, up_writer)), asyncio.ensure_future(pump(up_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            up_writer.transport.abort()
            writer.transport.abort()
