"""One daytona sandbox."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from openenv_providers import _daytona_convert as convert
from openenv_providers._daytona_commands import Commands
from openenv_sandbox.backend_kit import poll
from openenv_sandbox.errors import CapabilityError, EndpointError, ProviderError, SandboxGone
from openenv_sandbox.provider import Endpoint, Exit, Prepared, RawResult, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._daytona_api import Api
    from openenv_sandbox.provider import ImageConfig, OutputSink, SandboxInfo

TOKEN_HEADER = "X-Daytona-Preview-Token"
CHANGE_S = 120.0
"""How long a pause, a resume or a snapshot may take, in seconds."""


class DaytonaSandbox(Sandbox):
    """A sandbox of `DaytonaProvider`.

    Args:
        api: The account.
        info: What the vendor said last.
        toolbox_url: Where its commands and files are.
        config: How its image wants to be started, where that is known.
    """

    def __init__(self, api: Api, info: SandboxInfo, toolbox_url: str, config: ImageConfig | None = None) -> None:
        self.info = info
        self._api, self._config = api, config
        self._commands = Commands(api, self.ref, f"{toolbox_url.rstrip('/')}/{self.ref.id}", self._look)

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
        """See `_daytona_exec`. The command goes on when this call is cancelled; core ends it by another one."""
        assert isinstance(stdin, bytes | None)
        return RawResult(await self._commands.run(argv, env, cwd, stdin or b"", on_output))

    # ---------------------------------------------------------------------------------------------------- port

    async def endpoint(self, port: int) -> Endpoint:
        """The preview link, private: the token goes into a header, and each call asks for the one that is valid now."""
        try:
            link = await self._api.call(
                f"asking for the address of port {port}",
                lambda clients: clients.sandboxes.get_port_preview_url(self.ref.id, port),
                ref=self.ref,
            )
        except ProviderError as error:
            if error.retryable:
                raise EndpointError(error.message, ref=self.ref, hint=error.hint) from error
            raise
        return Endpoint(link.url, headers={TOKEN_HEADER: link.token})

    # ------------------------------------------------------------------------------------------------ its life

    async def _look(self) -> SandboxInfo:
        found = await self._api.call(
            "looking at the sandbox", lambda clients: clients.sandboxes.get_sandbox(self.ref.id), ref=self.ref
        )
        if str(getattr(found.state, "value", "")) in convert.ENDED:
            raise SandboxGone("the sandbox is gone", ref=self.ref)
        self.info = replace(convert.info(self.ref.scope, found), ref=self.ref)
        return self.info

    async def wait_exit(self) -> Exit:
        """Look at the state, ever more rarely: the vendor's events need a connection of their own."""
        with contextlib.suppress(SandboxGone):
            await poll(self._look, lambda info: info.status in ("stopped", "failed"), first=0.25, longest=10.0)
        return Exit(None)

    async def extend(self, lifetime_s: float) -> float:
        """Set the TTL again, in whole minutes, rounded up.

        Its answers are compared with each other: the vendor's clock need not be ours.
        """
        before, minutes = (await self._look()).expires_at, convert.minutes(lifetime_s)
        after = await self._set_ttl(minutes)
        if before is not None and after is not None and after < before:
            after = await self._set_ttl(minutes + convert.minutes(before - after))
        return after or time.time() + lifetime_s

    async def _set_ttl(self, minutes: int) -> float | None:
        await self._change("extending the lifetime", lambda clients: clients.sandboxes.set_ttl(self.ref.id, minutes))
        return self.info.expires_at

    async def pause(self) -> None:
        """Freeze it with its memory; kinds of sandbox that cannot are refused by the vendor."""
        if (await self._look()).status == "paused":
            return
        try:
            await self._change("pausing", lambda clients: clients.sandboxes.pause_sandbox(self.ref.id))
        except ProviderError as error:
            if error.retryable or type(error) is not ProviderError:
                raise
            raise CapabilityError(error.message, field="pause", ref=self.ref) from error
        await self._until("pausing", {"paused"})

    async def resume(self) -> None:
        """Start it again; the preview token changes with it."""
        if (await self._look()).status == "running":
            return
        await self._change("resuming", lambda clients: clients.sandboxes.start_sandbox(self.ref.id))
        await self._until("resuming", {"running"})

    async def snapshot(self) -> Prepared:
        """Files only, as a snapshot of the organisation."""
        import daytona_api_client_async as api

        name = convert.snapshot_name(self.info.labels.get("oe-install", ""), "kept", secrets.token_hex(8))
        body = api.CreateSandboxSnapshot(name=name)
        await self._change(
            "taking a snapshot", lambda clients: clients.sandboxes.create_sandbox_snapshot(self.ref.id, body)
        )
        await self._until("taking a snapshot", {"running", "paused", "stopped"})
        return Prepared(name, self._config, owned=True, labels=convert.snapshot_labels(name))

    async def _change(self, what: str, fn: Any) -> None:
        found = await self._api.call(what, fn, ref=self.ref, started=True, timeout=CHANGE_S)
        if found is not None:
            self.info = replace(convert.info(self.ref.scope, found), ref=self.ref)

    async def _until(self, what: str, wanted: set[str]) -> None:
        def there(info: SandboxInfo) -> bool:
            if info.status == "failed":
                raise ProviderError(f"{what} failed: the sandbox is in an error state", ref=self.ref)
            return info.status in wanted

        try:
            await poll(self._look, there, deadline=CHANGE_S)
        except TimeoutError:
            text = f"{what} did not end within {CHANGE_S:g} s"
            raise ProviderError(text, ref=self.ref, outcome="unknown", retryable=True) from None

    async def delete(self) -> None:
        """Like `DaytonaProvider.delete`."""
        await convert.delete(self._api, self.ref)
