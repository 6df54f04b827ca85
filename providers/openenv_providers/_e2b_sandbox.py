"""A sandbox of e2b or novita: its processes by the daemon inside, its ports by the service's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_providers._e2b_process import Follower
from openenv_providers._e2b_sdk import known
from openenv_sandbox.backend_kit import poll
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.errors import EndpointError, OpenEnvError, SandboxGone
from openenv_sandbox.provider import Endpoint, Exit, OutputSink, Prepared, RawResult, Sandbox, SandboxInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._e2b_base import CloudProvider

_LOOK_S = 10.0
"""How often a sandbox that nobody is connected to is looked at, in seconds."""


class CloudSandbox(Sandbox):
    """One sandbox.

    Args:
        provider: Whose it is.
        info: What is known of it, with the tokens in ``ref.state``.
        domain: Where its ports are.
        version: Of the daemon inside.
        lease: What `resume` sets its end to, in seconds from then.
        public: Whether its ports want no token.
    """

    def __init__(
        self, provider: CloudProvider, info: SandboxInfo, domain: str, version: str, lease: float, *, public: bool
    ) -> None:
        self.provider, self.cloud = provider, provider.cloud
        self.info = info
        self._domain, self._version, self._lease, self._public = domain, version, lease, public
        self._handle: Any = None
        self._resumed = asyncio.Event()
        self._resumed.set()

    async def handle(self) -> Any:
        """The SDK's object for talking to the daemon."""
        if self._handle is None:
            token = self.ref.state.get("envd")
            self._handle = self.cloud.handle(self.ref.id, self._domain, self._version, token)
        return self._handle

    async def state(self) -> str:
        """``running`` or ``paused``.

        Raises:
            SandboxGone: It does not exist.
        """
        return str((await self.provider.detail(self.ref)).state.value)

    async def exec_raw(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        user: str | None,
        stdin: bytes | AsyncIterator[bytes] | None,
        on_output: OutputSink,
    ) -> RawResult:
        """Without a shell, as root. A stream that breaks is taken up again: after a pause, too."""
        return await Follower(self, on_output).run(argv, env, cwd, stdin)

    async def endpoint(self, port: int) -> Endpoint:
        """The proxy's address of the port; every port has one. Its token lives as long as the sandbox."""
        await self.state()
        if not self._public and "traffic" not in self.ref.state:
            await self._reconnect(self._left())
        token = self.ref.state.get("traffic")
        if token is None and not self._public:
            raise EndpointError(
                f"{self.ref.provider} told no token for the ports of this sandbox",
                ref=self.ref,
                retryable=False,
                hint='exposure="public" does without one',
            )
        gateway = urlsplit(self.provider.options.gateway or "")
        return Endpoint(
            f"{gateway.scheme or 'https'}://{port}-{self.ref.id}.{self._domain}",
            headers={self.provider.traffic_header: token} if token else {},
            connect_to=(str(gateway.hostname), int(gateway.port or 0)) if gateway.hostname else None,
            public=self._public,
        )

    def _left(self) -> int:
        """Whole seconds until its end, so that asking for tokens cuts nothing."""
        return max(60, math.ceil((self.info.expires_at or 0.0) - CLOCK.get().time()))

    async def _reconnect(self, seconds: int) -> None:
        """Ask for it with its tokens; resumes it if it is paused."""
        made = await self.cloud.connect(self.ref, seconds, what="connecting to the sandbox")
        state = dict(self.ref.state)
        for name, token in (("envd", made.envd_access_token), ("traffic", made.traffic_access_token)):
            if known(token):
                state[name] = str(token)
        if state.get("envd") != self.ref.state.get("envd"):
            self._handle = None
        self.info = replace(self.info, ref=replace(self.info.ref, state=state))

    async def wait_exit(self) -> Exit:
        """Return when the sandbox is gone. The server's own end is told by the command that runs it."""
        with contextlib.suppress(SandboxGone):
            await poll(self.state, lambda state: False, first=0.5, longest=_LOOK_S)
        return Exit(None)

    async def delete(self) -> None:
        """Delete it."""
        await self.provider.delete(self.ref)

    async def extend(self, lifetime_s: float) -> float:
        """Set its end, unless it lies later. A paused one has none until `resume`."""
        self._lease = max(lifetime_s, 1.0)
        found = await self.provider.detail(self.ref)
        wanted, ends = CLOCK.get().time() + lifetime_s, float(found.end_at.timestamp())
        if str(found.state.value) != "paused" and ends < wanted:
            await self.cloud.rest(
                "sandboxes",
                "post_sandboxes_sandbox_id_timeout",
                self.ref.id,
                what="extending the sandbox",
                ref=self.ref,
                body=self.cloud.timeout_body(math.ceil(lifetime_s)),
            )
            ends = wanted
        self.info = replace(self.info, expires_at=max(ends, wanted))
        return max(ends, wanted)

    async def pause(self) -> None:
        """Freeze it, memory and all. Streams break; they go on after `resume`."""
        self._resumed.clear()
        await self.cloud.pause(self.ref, what="pausing the sandbox")
        self.info = replace(self.info, status="paused")

    async def resume(self) -> None:
        """Go on, with a lease as long as the last one."""
        await self._reconnect(max(self._left(), math.ceil(self._lease)))
        self.info = replace(self.info, status="running", expires_at=CLOCK.get().time() + self._lease)
        self._resumed.set()

    async def resumed_or(self, seconds: float) -> None:
        """Return when `resume` was called here, or after so long: another process may have done it."""
        if self._resumed.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._resumed.wait(), seconds)

    async def snapshot(self) -> Prepared:
        """The files alone: what is booted from it begins afresh, and core starts its server once."""
        with contextlib.suppress(OpenEnvError):  # what is not written yet could be lost; a small image has no sync
            await self.exec_raw(["sync"], env={}, cwd="/", user=None, stdin=None, on_output=lambda *_: None)
        install = self.info.labels.get("oe-install", "")
        name = f"openenv-snapshot-{install or 'none'}-{secrets.token_hex(6)}"
        reply = await self.cloud.rest(
            "sandboxes",
            "post_sandboxes_sandbox_id_snapshots",
            self.ref.id,
            what="taking a snapshot",
            ref=self.ref,
            body=self.cloud.snapshot_body(name),
        )
        labels = {"oe-install": install} if install else {}
        return Prepared(ref=reply.parsed.snapshot_id, owned=True, labels=labels, created_at=CLOCK.get().time())

    async def aclose(self) -> None:
        """Drop the daemon's client; the sandbox lives on."""
        self._handle = None  # nothing to close: connections belong to the SDK's pool, which others use
