"""One devbox of Runloop."""

from __future__ import annotations

import contextlib
import io
import shlex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openenv_providers._runloop_api import ENDED
from openenv_providers._runloop_blueprints import drop
from openenv_providers._runloop_convert import info
from openenv_sandbox.backend_kit import poll
from openenv_sandbox.endpoint import Endpoint
from openenv_sandbox.errors import EndpointError, FileError, OpenEnvError, ProviderError, SandboxGone
from openenv_sandbox.provider import Exit, Prepared, RawResult, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from openenv_providers._runloop_devboxes import Devboxes
    from openenv_sandbox.provider import ImageConfig, OutputSink

TOKEN_HEADER = "X-Runloop-Tunnel-Authorization"


class RunloopSandbox(Sandbox):
    """A devbox that runs."""

    def __init__(
        self, devboxes: Devboxes, view: Any, domain: str, gateway: str | None, config: ImageConfig | None
    ) -> None:
        self._devboxes, self._api = devboxes, devboxes.api
        self._domain, self._gateway, self._config = domain, gateway, config
        self.info = info(self._api.scope, view)

    async def _call(self, what: str, fn: Callable[[Any], Awaitable[Any]], *, started: bool = False) -> Any:
        try:
            if started:
                return await self._api.call(what, fn, ref=self.ref, started=True)
            return await self._api.patient(what, fn, ref=self.ref)
        except OpenEnvError as error:
            raise await self._devboxes.gone_or(error, self.ref) from error

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
        """Start it, wait for its end by long questions, and read what it wrote."""
        from runloop_api_client.types import DevboxAsyncExecutionDetailView

        id, command = self.ref.id, shlex.join(argv)
        done = await self._call(
            "starting a command", lambda client: client.devboxes.execute_async(id, command=command), started=True
        )
        if done.status != "completed":
            path = f"/v1/devboxes/{id}/executions/{done.execution_id}"
            try:
                done = await self._api.reached(path, ("completed",), DevboxAsyncExecutionDetailView, self.ref)
            except OpenEnvError as error:
                raise await self._devboxes.gone_or(error, self.ref) from error
        for name, text, cut in (
            ("stdout", done.stdout, done.stdout_truncated),
            ("stderr", done.stderr, done.stderr_truncated),
        ):
            if cut:
                text = await self._whole(name, done.execution_id)
            if text:
                on_output(name, text.encode())  # type: ignore[arg-type]
        return RawResult(done.exit_status)

    async def _whole(self, name: str, execution: str) -> str:
        """All of a stream: the answer holds its last hundred lines."""

        async def read(client: Any) -> str:
            ask = getattr(client.devboxes.executions, f"stream_{name}_updates")
            return "".join([chunk.output async for chunk in await ask(execution, devbox_id=self.ref.id)])

        return str(await self._call("reading a command's output", read))

    async def put(self, path: str, data: bytes) -> None:
        """By a multipart upload, which takes any bytes."""

        async def upload(client: Any) -> None:
            # The SDK writes what it sends into its debug log; of a stream it knows the name only.
            await client.devboxes.upload_file(self.ref.id, path=path, file=("data", io.BytesIO(data)))

        try:
            await self._call(f"writing {path}", upload)
        except ProviderError as error:
            raise FileError(error.message, ref=self.ref, retryable=error.retryable) from error

    async def endpoint(self, port: int) -> Endpoint:
        """The devbox's one tunnel serves every port; its token is asked for anew each time."""
        view = await self._devboxes.view(self.ref)
        tunnel = view.tunnel
        if tunnel is None:
            raise EndpointError("the devbox has no tunnel", ref=self.ref, retryable=False)
        private = tunnel.auth_mode == "authenticated"
        if private and not tunnel.auth_token:
            raise EndpointError("runloop told no token for the tunnel", ref=self.ref, retryable=False)
        gateway = urlsplit(self._gateway or "")
        return Endpoint(
            f"{gateway.scheme or 'https'}://{port}-{tunnel.tunnel_key}.tunnel.{self._domain}",
            headers={TOKEN_HEADER: f"Bearer {tunnel.auth_token}"} if private else None,
            connect_to=(str(gateway.hostname), int(gateway.port or 0)) if gateway.hostname else None,
            public=not private,
        )

    async def wait_exit(self) -> Exit:
        """By questions that the service holds; an outage of it is no end. Core knows how its own command ended."""
        from runloop_api_client.types import DevboxView

        path = f"/v1/devboxes/{self.ref.id}"
        try:
            view = await poll(
                lambda: self._api.held(path, ENDED, DevboxView, self.ref), lambda view: view is not None, longest=5.0
            )
        except SandboxGone:
            return Exit(None)
        return Exit(None, reason=view.shutdown_reason or view.failure_reason or "")

    async def snapshot(self) -> Prepared:
        """Of the disk, with what commands have written until now."""
        with contextlib.suppress(OpenEnvError):
            await self.exec_raw(["sync"], env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: None)
        labels = {name: text for name, text in self.info.labels.items() if name == "oe-install"}
        made = await self._call(
            "taking a snapshot",
            lambda client: client.devboxes.snapshot_disk_async(self.ref.id, name="openenv", metadata=labels),
            started=True,
        )
        taken = Prepared(made.id, self._config, None, True, labels, made.create_time_ms / 1000)
        state = await poll(
            lambda: self._call("looking at it", lambda client: client.devboxes.disk_snapshots.query_status(made.id)),
            lambda state: state.status != "in_progress",
        )
        if state.status != "complete":
            await drop(self._api, taken.ref)
            raise ProviderError(f"taking a snapshot: {state.error_message or state.status}", ref=self.ref)
        return taken

    async def delete(self) -> None:
        """As the provider does."""
        await self._devboxes.delete(self.ref)
