"""One sandbox of Azure Container Apps."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Protocol

from openenv_providers import _aca_disks as disks
from openenv_providers._aca_errors import NAME, Suspended, ours
from openenv_sandbox.backend_kit import poll, unix_time
from openenv_sandbox.errors import (
    CapabilityError,
    EndpointError,
    ExecError,
    FileError,
    OpenEnvError,
    ProviderError,
    SandboxGone,
)
from openenv_sandbox.provider import Endpoint, Exit, Prepared, RawResult, Sandbox, SandboxInfo, SandboxRef
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._aca_preview import Preview
    from openenv_providers._aca_values import Box
    from openenv_sandbox.provider import OutputSink

LOOK_S = 3.0
"""Between two looks at whether the sandbox still exists: nothing tells it."""


class Owner(Protocol):
    """What a sandbox asks of its provider."""

    @property
    def api(self) -> Preview:
        """The service."""

    @property
    def sources(self) -> Sequence[str]:
        """Networks that reach its ports; empty for all."""

    @property
    def gateway(self) -> tuple[str, int] | None:
        """Dialled instead of the name in a port's address."""

    async def tls(self) -> ssl.SSLContext | None:
        """For ports behind an authority of one's own."""

    async def delete(self, ref: SandboxRef) -> None:
        """Remove a sandbox."""


def info(scope: str, box: Box) -> SandboxInfo:
    """What the service tells, in our words. A restored one carries the labels of another, so its key proves nothing."""
    key = None if box.restored else box.labels.get(KEY)
    return SandboxInfo(
        ref=SandboxRef(NAME, scope, box.id, key),
        status=box.status,
        labels=box.labels,
        created_at=unix_time(box.created_at),
        resources=Resources(cpus=box.cpus, memory_mb=box.memory_mb, disk_mb=box.disk_mb),
        isolation="vm",
        image=box.disk,
    )


def _refused(error: ProviderError) -> bool:
    """Whether the service took the request for a wrong one, and not itself for unable."""
    return type(error) is ProviderError and not error.retryable


class AcaSandbox(Sandbox):
    """A sandbox of `AcaProvider`."""

    def __init__(self, provider: Owner, info: SandboxInfo) -> None:
        self.info = info
        self._provider, self._api = provider, provider.api

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
        """One line of the sandbox's shell; output comes as text, at its end."""
        what = f"running {argv[0]}"
        call = self._api.exec(self.ref.id, shlex.join(argv), cwd)
        try:
            code, out, err = await ours(call, what, ref=self.ref, acts=True)
        except ProviderError as error:
            if not _refused(error):
                raise
            raise ExecError(error.message, ref=self.ref) from error
        for name, text in (("stdout", out), ("stderr", err)):
            if text:
                on_output("stdout" if name == "stdout" else "stderr", text.encode("utf-8", "replace"))
        return RawResult(code)

    async def put(self, path: str, data: bytes) -> None:
        """By the files API, readable by its owner alone."""
        try:
            await ours(self._api.write(self.ref.id, path, data), f"writing {path}", ref=self.ref, acts=True)
        except ProviderError as error:
            if not _refused(error):
                raise
            raise FileError(error.message, ref=self.ref) from error

    async def endpoint(self, port: int) -> Endpoint:
        """The port's own address, open to everybody: the server's token alone guards it."""
        box = await self._look(f"looking for port {port}")
        if box.status in ("failed", "stopped"):
            raise SandboxGone(f"the sandbox ended ({box.status})", ref=self.ref)
        if not box.ports:
            raise CapabilityError(
                f"port {port} can only be opened to everybody, and this sandbox was made without an open port",
                field="exposure",
                ref=self.ref,
                hint='exposure="public" accepts that anyone who knows the address reaches the port',
            )
        url = box.ports.get(port)
        if port not in box.ports:
            opening = self._api.publish(self.ref.id, port, self._provider.sources)
            url = await ours(opening, f"opening port {port}", ref=self.ref, acts=True)
        if not url:
            raise EndpointError(f"port {port} has no address yet", ref=self.ref, retryable=True)
        return Endpoint(url, tls=await self._provider.tls(), connect_to=self._provider.gateway, public=True)

    async def wait_exit(self) -> Exit:
        """The end of the sandbox, by looking: the service tells no events."""

        async def look() -> bool:
            try:
                return (await self._look("looking whether it exists")).status in ("failed", "stopped")
            except SandboxGone:
                return True
            except OpenEnvError:
                return False  # one look that fails is no news of the sandbox

        await poll(look, bool, first=LOOK_S, longest=LOOK_S)
        return Exit(None)

    async def keep_alive(self) -> None:
        """A command is use. What was suspended for want of it is woken; what somebody paused is left alone."""
        try:
            await self.exec_raw([":"], env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: None)
        except Suspended:
            if not (await self._look("looking why it stands still")).idle:
                return
            await ours(self._api.wake(self.ref.id), "waking it", ref=self.ref, acts=True)

    async def pause(self) -> None:
        """Suspend with its memory; returns once it stands still."""
        if (await self._look("looking at it")).status != "paused":
            await ours(self._api.suspend(self.ref.id), "pausing it", ref=self.ref, acts=True)

    async def resume(self) -> None:
        """Go on where it stood; returns once it runs."""
        if (await self._look("looking at it")).status != "running":
            await ours(self._api.wake(self.ref.id), "resuming it", ref=self.ref, acts=True)

    async def snapshot(self) -> Prepared:
        """Its disk as an image: a memory snapshot takes no labels at create, so no key would lead to what it boots."""
        install = self.info.labels.get("oe-install")
        name = disks.new_name(install, disks.made_from(self.info.image))
        disk = await ours(self._api.commit(self.ref.id, name), "taking a snapshot", ref=self.ref, acts=True)
        disk = await disks.ready(self._api, disk, "taking a snapshot", lambda line: None)
        return Prepared(disk.id, owned=True, labels={"oe-install": install} if install else {})

    async def delete(self) -> None:
        """Remove it."""
        await self._provider.delete(self.ref)

    async def _look(self, what: str) -> Box:
        return await ours(self._api.get(self.ref.id), what, ref=self.ref)
