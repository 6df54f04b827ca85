"""Sandboxes of E2B: Firecracker machines booted from templates.

A registry ref or a folder is first built into a template by E2B, sizes included. Ports are reached by a host name that
the client makes up, with a token, unless every port may be public. Facts below are from the SDK's source (2.63.0).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers._e2b_base import CloudProvider
from openenv_providers._e2b_options import CloudOptions
from openenv_providers._e2b_sdk import KEEPALIVE, STARTED_BY, Event, Sdk
from openenv_sandbox.provider import Verified

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.provider import SandboxRef


class E2bSdk(Sdk):
    """The generation on pyqwest and connectrpc."""

    root = "e2b"
    prefix = "E2B"

    def default_domain(self) -> str:
        """Where the SDK goes by itself."""
        return "e2b.app"

    def params(self) -> dict[str, Any]:
        """Without the SDK's own retries: core has one policy, with our deadline."""
        return {**super().params(), "retries": 0, "debug": False}

    async def create(self, body: Mapping[str, Any], *, key: str, what: str) -> Any:
        """``POST /v2/sandboxes``."""
        models = self.models
        network = models.SandboxNetworkConfig(**body["network"])
        reply = await self.rest(
            "sandboxes",
            "post_v2_sandboxes",
            what=what,
            template=True,
            body=models.NewSandboxV2(**{**body, "network": network}),
            idempotency_key=key,
        )
        return reply.parsed

    async def connect(self, ref: SandboxRef, seconds: int, *, what: str) -> Any:
        """Never shortens a running sandbox's life."""
        call, body = "post_v_2_sandboxes_sandbox_id_connect", self.models.ConnectSandboxV2(timeout=seconds)
        return (await self.rest("sandboxes", call, ref.id, what=what, ref=ref, body=body)).parsed

    def pause_body(self) -> dict[str, Any]:
        """With memory, which is the service's default."""
        return {"body": self.models.SandboxPauseRequest()}

    def timeout_body(self, seconds: int) -> Any:
        """Seconds from now."""
        return self.models.SandboxTimeoutRequest(timeout=seconds)

    def snapshot_body(self, name: str) -> Any:
        """Snapshots have names here; without memory."""
        return self.models.SandboxSnapshotRequest(name=name, memory=False)

    def template(self, base: str, folder: str, **login: str) -> Any:
        """Steps run as root: a template that says nothing would run them as ``user``."""
        template = self.module("template_sync.main").Template(file_context_path=folder)
        return template.from_image(base, **login).set_user(STARTED_BY)

    # ------------------------------------------------------------------------------------------------- processes

    def routing(self, sandbox_id: str) -> dict[str, str]:
        """As the SDK sets them."""
        return {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983"}

    def start(
        self, handle: Any, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bool, tag: str
    ) -> AsyncIterator[Event]:
        """Without a deadline: a server lives as long as it likes."""
        pb = self._pb
        process = pb.ProcessConfig(cmd=argv[0], args=list(argv[1:]), envs=dict(env), cwd=cwd)
        request = pb.StartRequest(process=process, stdin=stdin, tag=tag)
        return _events(handle.commands._rpc.start(request, headers={**self.user_header(), **KEEPALIVE}))

    def follow(self, handle: Any, pid: int | None, tag: str) -> AsyncIterator[Event]:
        """Output from now on."""
        request = self._pb.ConnectRequest(process=self._process(pid, tag))
        return _events(handle.commands._rpc.connect(request, headers={**self.user_header(), **KEEPALIVE}))

    async def send(self, handle: Any, pid: int, data: bytes) -> None:
        """One message."""
        await handle.commands.send_stdin(pid, data)

    async def close_stdin(self, handle: Any, pid: int) -> None:
        """EOF."""
        await handle.commands.close_stdin(pid)

    async def kill(self, handle: Any, pid: int) -> None:
        """SIGKILL."""
        await handle.commands.kill(pid)

    def code(self, error: BaseException) -> str | None:
        """``unavailable`` also for a connection that was never made, over which nothing was sent."""
        name = type(error).__name__
        if name in ("NotFoundException", "SandboxNotFoundException"):
            return "not_found"
        code = getattr(error, "code", None)
        cause = error.__cause__
        if isinstance(cause, ConnectionError):
            return "unavailable"
        if code is None or isinstance(cause, OSError) or type(cause).__module__.startswith("pyqwest"):
            return None
        return str(getattr(code, "value", code))

    @property
    def _pb(self) -> Any:
        return self.module("envd.process.process_pb")

    def _process(self, pid: int | None, tag: str) -> Any:
        from protobuf import Oneof

        return self._pb.ProcessSelector(selector=Oneof("pid", pid) if pid is not None else Oneof("tag", tag))


async def _events(stream: Any) -> AsyncIterator[Event]:
    try:
        async for message in stream:
            one: Any = message.event.event if message.event is not None else None
            field, value = (one.field, one.value) if one is not None else ("", None)
            if value is None:
                continue
            if field == "start":
                yield Event("start", number=value.pid)
            elif field == "data" and value.output is not None:
                kind = value.output.field
                yield Event(kind if kind in ("stdout", "stderr") else "other", data=bytes(value.output.value))
            elif field == "end":
                yield Event("end", number=value.exit_code, exited=value.exited, status=value.status)
    except Exception as error:
        if isinstance(error.__cause__, asyncio.CancelledError):  # connectrpc makes an error of a cancellation
            raise error.__cause__ from None
        raise
    finally:
        await stream.aclose()


class E2bProvider(CloudProvider):
    """Sandboxes of one E2B team."""

    name = "e2b"
    title = "E2B"
    extra = "e2b"
    sdk = ("e2b", "e2b.template_sync.main", "e2b.sandbox_async.main")
    python = (3, 11)
    env_vars = ("E2B_API_KEY",)
    Options = CloudOptions
    sdk_class: ClassVar[type[Sdk]] = E2bSdk
    traffic_header = "e2b-traffic-access-token"
    verified = Verified("emulator", sdk="e2b 2.63.0", date="2026-11-30", note="control plane, envd and ports emulated")

    def tame(self) -> None:
        """It says nothing unless it is given a logger."""
