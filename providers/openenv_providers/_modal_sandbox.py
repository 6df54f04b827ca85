"""One sandbox of modal."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol

from openenv_providers import _modal_streams as streams
from openenv_providers._modal_account import translate
from openenv_sandbox.errors import (
    AuthError,
    EndpointError,
    ExecError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.provider import Endpoint, Exit, RawResult, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._modal_account import Account
    from openenv_providers._modal_images import Images
    from openenv_sandbox.provider import ImageConfig, OutputSink, Prepared, SandboxInfo, SandboxRef

_LOOK_S = 10.0
"""How often a running command looks whether the sandbox still exists: the SDK waits for a lost worker for ever."""

_OVER_S, _WORDS_S, _SNAPSHOT_S = 1.0, 5.0, 300.0
_LONGEST = timedelta(hours=25)


class Owner(Protocol):
    """What a sandbox asks of its provider."""

    account: Account
    images: Images

    async def delete(self, ref: SandboxRef) -> None:
        """Terminate a sandbox."""


class ModalSandbox(Sandbox):
    """A sandbox of `ModalProvider`.

    Args:
        owner: Its provider.
        handle: The SDK's object.
        info: What is known of it.
        tunnels: Ports that were opened at create, to ``http`` or ``tcp``.
        config: How its image wants to be started, None when unknown.
    """

    def __init__(
        self, owner: Owner, handle: Any, info: SandboxInfo, tunnels: Mapping[int, str], config: ImageConfig | None
    ) -> None:
        self.info = info
        self._owner, self._handle = owner, handle
        self._account = owner.account
        self._tunnels, self._config = dict(tunnels), config

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
        """Over the worker's own gRPC service; variables travel in the request, never in the argv."""
        what = f"running {argv[0]}"
        process = await self._start(what, argv, dict(env), cwd)
        seen = [0]

        def heard(name: Any, data: bytes) -> None:
            seen[0] += len(data)
            on_output(name, data)

        feed = asyncio.ensure_future(streams.feed(process.stdin, stdin))
        waiter = asyncio.ensure_future(streams.code(process))
        pumps = [
            asyncio.ensure_future(streams.pump(process.stdout, "stdout", heard)),
            asyncio.ensure_future(streams.pump(process.stderr, "stderr", heard)),
        ]
        try:
            code = await self._ended(what, waiter, pumps, feed)
            await streams.drained(pumps, seen)
            for pump in pumps:
                await self._raise_broken(what, pump)
        finally:
            await streams.cancelled(feed, waiter, *pumps)
        if code in (137, -1) and await self._over(_OVER_S):
            raise SandboxGone(f"{what}: the sandbox ended meanwhile", ref=self.ref, outcome="unknown")
        return RawResult(code)

    async def _start(self, what: str, argv: Sequence[str], env: dict[str, str], cwd: str | None) -> Any:
        from openenv_sandbox import retry

        async def once() -> Any:
            request = self._handle.exec.aio(*argv, env=env or None, workdir=cwd, text=False)
            return await self._account.call(what, request, ref=self.ref, started=True)

        try:
            return await retry.call(once, deadline=self._account.timeout_s, dedupes=False)
        except (SandboxGone, ProviderUnavailable, RateLimited, AuthError):
            raise
        except ProviderError as error:
            raise ExecError(error.message, ref=self.ref, outcome=error.outcome) from error

    async def _ended(
        self, what: str, waiter: asyncio.Future[int], pumps: Sequence[asyncio.Future[None]], feed: asyncio.Future[None]
    ) -> int:
        """The exit code; raises when the sandbox ended, or a stream broke for good."""
        pending: set[asyncio.Future[Any]] = {waiter, feed, *pumps}
        while not waiter.done():
            done, pending = await asyncio.wait(pending, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await self._raise_broken(what, task)
            if not done and await self._over(0):
                raise SandboxGone(f"{what}: the sandbox ended meanwhile", ref=self.ref, outcome="unknown")
        return waiter.result()

    async def _raise_broken(self, what: str, task: asyncio.Future[Any]) -> None:
        error = None if task.cancelled() or not task.done() else task.exception()
        if error is None:
            return
        if not isinstance(error, streams.Broken):
            raise error  # the caller's own: its sink, or its iterator of input
        ours = translate(error.error, what=what, ref=self.ref, started=True)
        if isinstance(ours, SandboxGone) or await self._over(_OVER_S):
            raise SandboxGone(ours.message, ref=self.ref, outcome="unknown") from error
        raise ExecError(ours.message, ref=self.ref, outcome="unknown") from error

    async def _over(self, patience: float) -> bool:
        """Whether the sandbox has ended, or does so within ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            with contextlib.suppress(OpenEnvError):
                try:
                    code = await self._account.call("looking at the sandbox", self._handle.poll.aio(), ref=self.ref)
                except SandboxGone:
                    return True
                if code is not None:
                    return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(0.2)

    # ---------------------------------------------------------------------------------------------------- port

    async def endpoint(self, port: int) -> Endpoint:
        """A connect token for ``port``; the open tunnel only where the port was made public at create."""
        await self._alive(f"opening port {port}")
        kind = self._tunnels.get(port)
        if kind is None:
            request = self._handle.create_connect_token.aio(port=port)
            made = await self._account.call(f"making a token for port {port}", request, ref=self.ref)
            return Endpoint(made.url, headers={"Authorization": f"Bearer {made.token}"}, expires_at=_expiry(made.token))
        limit = self._account.timeout_s
        found = await self._account.call(
            f"looking for the tunnel to port {port}", self._handle.tunnels.aio(timeout=int(limit)), ref=self.ref
        )
        tunnel = found.get(port)
        if tunnel is None:
            raise EndpointError(f"modal opened no tunnel to port {port}", ref=self.ref)
        if kind == "tcp":
            host, number = tunnel.tcp_socket
            return Endpoint(f"http://{host}:{number}", public=True)
        return Endpoint(tunnel.url, public=True)

    async def _alive(self, what: str) -> None:
        code = await self._account.call(what, self._handle.poll.aio(), ref=self.ref)
        if code is not None:
            raise SandboxGone(f"{what}: the sandbox ended (exit code {code})", ref=self.ref)

    # ------------------------------------------------------------------------------------------------ its life

    async def wait_exit(self) -> Exit:
        """The service's long poll, for as long as it takes; a hiccup of it is no end."""
        import modal.exception as theirs

        while True:
            try:
                await self._handle.wait.aio()
                break
            except (theirs.SandboxTimeoutError, theirs.SandboxTerminatedError) as error:
                how = "its lifetime was over" if isinstance(error, theirs.SandboxTimeoutError) else "it was terminated"
                raise SandboxGone(f"the sandbox ended: {how}", ref=self.ref) from error
            except Exception as error:
                ours = translate(error, what="waiting for the end", ref=self.ref)
                if not ours.retryable:
                    raise ours from error
            await asyncio.sleep(1.0)
        return Exit(self._handle.returncode, await self._last_words())

    async def _last_words(self) -> bytes:
        """From the worker, which still holds them; from the log where it does not."""
        reads = asyncio.gather(self._handle.stdout.read.aio(), self._handle.stderr.read.aio())
        try:
            return "".join(await asyncio.wait_for(reads, _WORDS_S)).encode()
        except asyncio.CancelledError:
            raise
        except Exception:  # gone with the worker, or no text
            with contextlib.suppress(OpenEnvError):
                return await self.logs(tail=50)
        return b""

    async def logs(self, *, tail: int | None = None) -> bytes:
        """From the service's log store: both streams in the order they arrived there."""

        async def read() -> list[str]:
            if tail is not None:
                return [entry.message async for entry in self._handle.logs.tail.aio(min(max(tail, 1), 20_000))]
            since = datetime.now(timezone.utc) - _LONGEST
            return [entry.message async for entry in self._handle.logs.fetch.aio(since=since)]

        text = "".join(await self._account.call("reading the log", read(), ref=self.ref)).encode()
        return text if tail is None else b"".join(text.splitlines(keepends=True)[-tail:] if tail > 0 else [])

    async def snapshot(self) -> Prepared:
        """Files only; modal keeps them for 30 days."""
        await self._alive("taking a snapshot")
        return await self._owner.images.keep(self._handle, self.ref, self._config, _SNAPSHOT_S)

    async def delete(self) -> None:
        """Terminate."""
        await self._owner.delete(self.ref)

    async def aclose(self) -> None:
        """Close the connection to the worker."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._handle.detach.aio(), _WORDS_S)


def _expiry(token: str) -> float | None:
    """The end of a token that says it, as JWTs do; None for one that does not."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None
