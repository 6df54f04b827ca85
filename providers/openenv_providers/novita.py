"""Sandboxes of Novita, whose SDK is a fork of an older generation of e2b's.

The package is ``novita-sandbox``: ``novita-client`` is another product, without sandboxes. What differs from e2b is
here: httpx and google.protobuf instead of pyqwest and connectrpc, create in version 1 of the API, and a builder that
would read the image's config from here and run the image's command at every start; it is told not to. The header that
carries the traffic token is the one that the SDK's own code interpreter sends; whether the service honours it for every
port is UNVERIFIED. If not, a private port answers 403 and the launch fails: nothing is open.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers._e2b_base import CAPABILITIES, CloudProvider
from openenv_providers._e2b_options import CloudOptions
from openenv_providers._e2b_sdk import KEEPALIVE, STARTED_BY, Event, Sdk
from openenv_sandbox.provider import Verified

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import SandboxRef

# Who uses the connections that the SDK keeps for a loop: the last one closes them.
_users: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[int]] = weakref.WeakKeyDictionary()


class NovitaSdk(Sdk):
    """The generation on httpx and google.protobuf."""

    root = "novita_sandbox.core"
    prefix = "NOVITA"
    legacy = frozenset(
        {
            "sandbox.novita.ai", "us-01.sandbox.novita.ai", "us-ga-01.sandbox.novita.ai", "us-ga-1.sandbox.novita.ai",
            "sandbox-dev.novita.ai", "us-01.sandbox-dev.novita.ai", "us-ga-01.sandbox-dev.novita.ai",
            "us-ca-1.sandbox-dev.novita.ai",
        }
    )  # fmt: skip

    def default_domain(self) -> str:
        """Where the SDK goes by itself."""
        return "us-phx-1.sandbox.novita.ai"

    def client(self) -> Any:
        """The SDK keeps connections by the id of the loop, which a later loop may get again."""
        self._fresh()
        return super().client()

    def handle(self, sandbox_id: str, domain: str | None, version: str, envd_token: str | None) -> Any:
        """Likewise."""
        self._fresh()
        return super().handle(sandbox_id, domain, version, envd_token)

    def _transports(self) -> dict[int, Any]:
        kept: dict[int, Any] = self.module("api.client_async").AsyncTransportWithLogger._instances
        return kept

    def _fresh(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in _users:
            self._transports().pop(id(loop), None)
        _users.setdefault(loop, set()).add(id(self))

    async def aclose(self) -> None:
        """Close the client, and the connections that the SDK would keep for this loop for ever."""
        self._client = None
        loop = asyncio.get_running_loop()
        users = _users.get(loop, set())
        users.discard(id(self))
        if not users and (transport := self._transports().pop(id(loop), None)) is not None:
            _users.pop(loop, None)
            await transport.aclose()

    async def create(self, body: Mapping[str, Any], *, key: str, what: str) -> Any:
        """``POST /sandboxes``; it takes no idempotency key."""
        models = self.models
        network = models.SandboxNetworkConfig(**body["network"])
        made = models.NewSandbox(**{**body, "network": network}, secure=True)
        return (await self.rest("sandboxes", "post_sandboxes", what=what, template=True, body=made)).parsed

    async def connect(self, ref: SandboxRef, seconds: int, *, what: str) -> Any:
        """Sets the end, so ``seconds`` is never less than what is left."""
        call, body = "post_sandboxes_sandbox_id_connect", self.models.ConnectSandbox(timeout=seconds)
        return (await self.rest("sandboxes", call, ref.id, what=what, ref=ref, body=body)).parsed

    def pause_body(self) -> dict[str, Any]:
        """None."""
        return {}

    def timeout_body(self, seconds: int) -> Any:
        """Seconds from now."""
        return self.models.PostSandboxesSandboxIDTimeoutBody(timeout=seconds)

    def snapshot_body(self, name: str) -> Any:
        """The SDK's own method gives no name; its model takes one."""
        return self.models.PostSandboxesSandboxIDSnapshotsBody(name=name)

    def template(self, base: str, folder: str, **login: str) -> Any:
        """Without the image's config, which the SDK would fetch from the registry itself and start."""
        template = self.module("template_sync.main").Template(file_context_path=folder)
        return template.from_image(base, inherit_config=False, **login).set_user(STARTED_BY)

    def begin_build(self, builder: Any, name: str, **keywords: Any) -> Any:
        """With a command that does nothing, so that none of the image's own is started."""
        return super().begin_build(builder.set_start_cmd("sleep infinity", "true"), name, **keywords)

    # ------------------------------------------------------------------------------------------------- processes

    def routing(self, sandbox_id: str) -> dict[str, str]:
        """As the SDK sets them."""
        return {"Novita-Sandbox-Id": sandbox_id, "Novita-Sandbox-Port": "49983"}

    def start(
        self, handle: Any, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bool, tag: str
    ) -> AsyncIterator[Event]:
        """Without a deadline: a server lives as long as it likes."""
        pb = self._pb
        process = pb.ProcessConfig(cmd=argv[0], args=list(argv[1:]), envs=dict(env), cwd=cwd)
        request = pb.StartRequest(process=process, stdin=stdin, tag=tag)
        return _events(handle.commands._rpc.astart(request, **self._stream()))

    def follow(self, handle: Any, pid: int | None, tag: str) -> AsyncIterator[Event]:
        """Output from now on."""
        selector = self._pb.ProcessSelector(pid=pid) if pid is not None else self._pb.ProcessSelector(tag=tag)
        request = self._pb.ConnectRequest(process=selector)
        return _events(handle.commands._rpc.aconnect(request, **self._stream()))

    async def send(self, handle: Any, pid: int, data: bytes) -> None:
        """One message. The SDK sends it again where the connection ends without a reply."""
        pb = self._pb
        request = pb.SendInputRequest(process=pb.ProcessSelector(pid=pid), input=pb.ProcessInput(stdin=data))
        await handle.commands._rpc.asend_input(request, request_timeout=self.options.request_timeout_s)

    async def close_stdin(self, handle: Any, pid: int) -> None:
        """EOF."""
        request = self._pb.CloseStdinRequest(process=self._pb.ProcessSelector(pid=pid))
        await handle.commands._rpc.aclose_stdin(request, request_timeout=self.options.request_timeout_s)

    async def kill(self, handle: Any, pid: int) -> None:
        """SIGKILL."""
        await handle.commands.kill(pid)

    def code(self, error: BaseException) -> str | None:
        """``unavailable`` also for a connection that was never made, over which nothing was sent."""
        if type(error).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout"):
            return "unavailable"
        status: Any = getattr(error, "status", None)
        return str(status.value) if hasattr(status, "value") else None

    def _stream(self) -> dict[str, Any]:
        """No bound on reading: `request_timeout` is for making the connection and sending."""
        headers = {**self.user_header(), **KEEPALIVE}
        return {"headers": headers, "timeout": None, "request_timeout": self.options.request_timeout_s}

    @property
    def _pb(self) -> Any:
        return self.module("envd.process.process_pb2")


async def _events(stream: Any) -> AsyncIterator[Event]:
    try:
        async for message in stream:
            event = message.event
            kind = event.WhichOneof("event")
            if kind == "start":
                yield Event("start", number=event.start.pid)
            elif kind == "data":
                name = event.data.WhichOneof("output")
                if name in ("stdout", "stderr"):
                    yield Event(name, data=getattr(event.data, name))
            elif kind == "end":
                end = event.end
                yield Event("end", number=end.exit_code, exited=end.exited, status=end.status)
    finally:
        await stream.aclose()


class NovitaProvider(CloudProvider):
    """Sandboxes of one Novita account."""

    name = "novita"
    title = "Novita"
    extra = "novita"
    sdk = ("novita_sandbox.core", "novita_sandbox.core.template_sync.main")
    env_vars = ("NOVITA_API_KEY",)
    Options = CloudOptions
    capabilities: ClassVar[Capabilities] = replace(CAPABILITIES, network=frozenset({"full", "none", "cidr4"}))
    sdk_class: ClassVar[type[Sdk]] = NovitaSdk
    traffic_header = "E2B-Traffic-Access-Token"
    verified = Verified(
        "emulator", sdk="novita-sandbox 2.1.1", date="2026-11-30", note="control plane, envd and ports emulated"
    )

    def tame(self) -> None:
        """It logs every status of 400 or more as an error: without handlers that would be printed."""
        logger = logging.getLogger("novita_sandbox")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
