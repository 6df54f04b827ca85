"""One container."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from openenv_providers import _docker_stream as stream
from openenv_providers._docker_daemon import translate
from openenv_sandbox.errors import CapabilityError, EndpointError, ExecError, OpenEnvError, ProviderError, SandboxGone
from openenv_sandbox.provider import Endpoint, Exit, RawResult, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._docker_daemon import Daemon
    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import OutputSink, Prepared, SandboxInfo, SandboxRef

_TAIL = 50
_CODE_S = 5.0
"""How long the daemon may take to write down an exit code after the output ended."""

_END_S = 1.0
"""How long after a killed command the daemon may take to notice that the whole container ended."""


class Owner(Protocol):
    """What a container asks of its provider."""

    daemon: Daemon

    def effective_capabilities(self) -> Capabilities:
        """What the daemon can do."""

    async def inspect(self, ref: SandboxRef) -> dict[str, Any]:
        """What the daemon says about a container."""

    async def inside_a_container(self) -> bool:
        """Whether the daemon's 127.0.0.1 is not ours."""

    async def delete(self, ref: SandboxRef) -> None:
        """Remove a container."""


class DockerSandbox(Sandbox):
    """A container of `DockerProvider`."""

    def __init__(self, provider: Owner, info: SandboxInfo, inspected: Mapping[str, Any]) -> None:
        self.info = info
        self._provider = provider
        self._daemon = provider.daemon
        self._inspected = inspected
        self._offline = (inspected.get("HostConfig") or {}).get("NetworkMode") == "none"

    # ------------------------------------------------------------------------------------------------ commands

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
        """Over a connection of its own; see `_docker_stream`."""
        what, identifier = f"running {argv[0]}", self.ref.id
        options = {"stdin": True, "environment": dict(env), "workdir": cwd, "user": user or ""}
        try:
            made = await self._daemon.call(
                what, lambda api: api.exec_create(identifier, list(argv), **options), ref=self.ref
            )
        except ProviderError as error:
            if "is paused" not in error.message:
                raise
            raise ExecError(
                f"{what}: the container is paused", ref=self.ref, hint="resume it first", retryable=True
            ) from error
        try:
            await stream.run(self._daemon.host, made["Id"], stdin, on_output)
            code = await self._exit_code(made["Id"])
        except stream.NotStarted as error:
            raise ExecError(f"{what}: {error}", ref=self.ref) from None
        except stream.Refused as error:
            ours = translate(error, what=what, ref=self.ref)
            raise ours if isinstance(ours, SandboxGone) else ExecError(ours.message, ref=self.ref) from error
        except (ConnectionError, SandboxGone) as error:
            await self._died(what, error)
        if code is None or code == 137:
            await self._died(what, None, code)
        return RawResult(code)

    async def _exit_code(self, exec_id: str) -> int | None:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + _CODE_S, 0.01
        while True:
            found = await self._daemon.call(
                "reading the exit code", lambda api: api.exec_inspect(exec_id), ref=self.ref
            )
            if not found["Running"] or loop.time() > deadline:
                return None if found["ExitCode"] is None else int(found["ExitCode"])
            await asyncio.sleep(pause)
            pause *= 2

    async def _died(self, what: str, error: BaseException | None, code: int | None = None) -> None:
        """Raise when the container ended, or the code is unknown; a command that was merely killed is neither."""
        # The command's end is told before the container's: a SIGKILL (137) may have come with it.
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError, SandboxGone):
            await asyncio.wait_for(self._ended(), _END_S)
        state = (await self._provider.inspect(self.ref)).get("State") or {}
        if not state.get("Running"):
            text = f"{what}: the container ended meanwhile (exit code {state.get('ExitCode')})"
            raise SandboxGone(text, ref=self.ref, outcome="unknown") from error
        if error is not None or code is None:
            raise ExecError(f"{what}: its exit code is not known", ref=self.ref, outcome="unknown") from error

    # ---------------------------------------------------------------------------------------------------- port

    async def endpoint(self, port: int) -> Endpoint:
        """The published port, as 127.0.0.1; a relay through exec where that does not lead to the container.

        It does not when the container has no network, when the daemon is another machine's, and when this process
        runs in a container itself.
        """
        await self._refresh()
        settings = self._inspected.get("NetworkSettings") or {}
        if self._offline or not self._daemon.host.local or await self._provider.inside_a_container():
            return await self._relay(port)
        for pause in (0.02, 0.1, 0.3, 1.0, None):
            published = (settings.get("Ports") or {}).get(f"{port}/tcp") or []
            if published:
                break
            declared = (self._inspected.get("HostConfig") or {}).get("PortBindings") or {}
            if f"{port}/tcp" not in declared:
                raise CapabilityError(
                    f"port {port} was not declared at create; declared: {', '.join(sorted(declared)) or 'none'}",
                    field="ports",
                    ref=self.ref,
                    hint=f"ports=[{port}]",
                )
            if pause is None:
                raise EndpointError(f"the daemon published no address for port {port}", ref=self.ref)
            await asyncio.sleep(pause)
            await self._refresh()
            settings = self._inspected.get("NetworkSettings") or {}
        return Endpoint(f"http://127.0.0.1:{published[0]['HostPort']}")

    async def _relay(self, port: int) -> Endpoint:
        from openenv_sandbox.tunnel import open_tunnel

        exec_ = self._provider.effective_capabilities().exec
        assert exec_ is not None
        return await open_tunnel(self, port, exec_)

    async def _refresh(self) -> None:
        self._inspected = await self._provider.inspect(self.ref)
        status = str((self._inspected.get("State") or {}).get("Status"))
        if status in ("exited", "dead", "removing"):
            raise SandboxGone(f"the container ended ({status})", ref=self.ref)

    # ------------------------------------------------------------------------------------------------ its life

    async def wait_exit(self) -> Exit:
        """The daemon's own wait."""
        code = await self._ended()
        tail, reason = b"", ""
        with contextlib.suppress(OpenEnvError):
            tail = await self.logs(tail=_TAIL)
            state = (await self._provider.inspect(self.ref)).get("State") or {}
            reason = "out of memory" if state.get("OOMKilled") else ""
        return Exit(code, tail, reason)

    async def _ended(self) -> int:
        path = f"/containers/{self.ref.id}/wait?condition=not-running"
        try:
            async with await stream.request(self._daemon.host, "POST", path) as reply:
                return int((await reply.json())["StatusCode"])
        except (stream.Refused, ValueError, KeyError) as error:
            raise SandboxGone("the container is gone", ref=self.ref) from error

    async def first_output(self) -> None:
        """The first byte of the followed log."""
        path = f"/containers/{self.ref.id}/logs?follow=1&stdout=1&stderr=1"
        try:
            async with await stream.request(self._daemon.host, "GET", path) as reply:
                if await reply.reader.read(1):
                    return
        except (stream.Refused, OpenEnvError):
            pass
        await asyncio.get_running_loop().create_future()  # a hint that will not come; the probe goes on without it

    async def logs(self, *, tail: int | None = None) -> bytes:
        """Both streams in the order they were written."""
        wanted: Any = "all" if tail is None else tail
        identifier = self.ref.id
        text: bytes = await self._daemon.call(
            "reading the log", lambda api: api.logs(identifier, stdout=True, stderr=True, tail=wanted), ref=self.ref
        )
        return text

    async def pause(self) -> None:
        """Freeze by the cgroup freezer."""
        await self._switch("pausing", "pause", "is already paused")

    async def resume(self) -> None:
        """Thaw."""
        await self._switch("resuming", "unpause", "is not paused")

    async def _switch(self, what: str, verb: str, fine: str) -> None:
        identifier = self.ref.id
        try:
            await self._daemon.call(what, lambda api: getattr(api, verb)(identifier), ref=self.ref, started=True)
        except SandboxGone:
            raise
        except OpenEnvError as error:
            if fine not in error.message:
                raise

    async def snapshot(self) -> Prepared:
        """Files only; processes are not kept."""
        from openenv_providers import _docker_commit

        await self._refresh()
        return await _docker_commit.commit(self._daemon, self.info, self._inspected)

    async def delete(self) -> None:
        """Kill and remove."""
        await self._provider.delete(self.ref)
