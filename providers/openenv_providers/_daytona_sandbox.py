"""One daytona sandbox."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from openenv_providers import _daytona_convert as convert
from openenv_providers import _daytona_exec as remote
from openenv_sandbox.errors import (
    CapabilityError,
    EndpointError,
    ExecError,
    OpenEnvError,
    ProviderError,
    SandboxGone,
)
from openenv_sandbox.provider import Endpoint, Exit, Prepared, RawResult, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._daytona_api import Api, Clients
    from openenv_sandbox.provider import ImageConfig, OutputSink, SandboxInfo

TOKEN_HEADER = "X-Daytona-Preview-Token"
TRIES = 4
"""So many looks at a running command may fail in a row."""
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
        self._api, self._toolbox, self._config = api, toolbox_url, config
        self._folder: asyncio.Task[str] | None = None
        self._finished: list[str] = []
        self._count = 0

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
        """See `_daytona_exec`. The command goes on when this call is cancelled; core ends it by another one."""
        what = f"running {argv[0]}"
        home = await self._home()
        self._count += 1
        folder, sources = f"{home}/{self._count}", list[str]()
        assert isinstance(stdin, bytes | None)
        for start in range(0, len(stdin or b""), remote.CHUNK):
            sources.append(f"{folder}.in{len(sources)}")
            await self._upload(sources[-1], (stdin or b"")[start : start + remote.CHUNK], what)
        gone, self._finished = self._finished, []
        nonce = secrets.token_hex(8)
        words = (nonce, str(remote.CHUNK), folder, " ".join(sources), cwd or "", " ".join(gone), *argv)
        command = remote.line(remote.START, *words)
        if len(command) > remote.LONGEST:
            command = f"/bin/sh {folder}.sh"
            await self._upload(f"{folder}.sh", remote.as_file(remote.START, *words), what)
            self._finished.append(f"{folder}.sh")
        code, text = await self._execute(command, what, env=env, started=True)
        if code == remote.NO_CWD:
            raise ExecError(f"{what}: no directory {cwd!r} in the sandbox", ref=self.ref)
        if code == remote.NO_FOLDER:
            self._folder = None  # it was removed, or the sandbox restarted; the next command makes another
            raise ExecError(f"{what}: the folder for its output is gone", ref=self.ref, retryable=True)
        try:
            return await self._follow(what, folder, remote.news(text, nonce), on_output)
        finally:
            self._finished.append(folder)

    async def _follow(self, what: str, folder: str, news: remote.News | None, on_output: OutputSink) -> RawResult:
        told, failures = [0, 0], 0
        while True:
            if news is not None:
                failures = 0
                for index, data in enumerate((news.stdout, news.stderr)):
                    told[index] += len(data)
                    if data:
                        on_output("stderr" if index else "stdout", data)
                if news.over:
                    return RawResult(news.code)
            nonce = secrets.token_hex(8)
            words = (nonce, str(remote.CHUNK), folder, str(told[0]), str(told[1]))
            try:
                code, text = await self._execute(remote.line(remote.NEXT, *words), what)
                news = remote.news(text, nonce)
            except SandboxGone:
                raise
            except OpenEnvError as error:
                # The offsets make every look repeatable; one that fails is no news of the command.
                failures, code, news = failures + 1, None, None
                if not error.retryable or failures >= TRIES:
                    error.outcome = "unknown"
                    raise
                await asyncio.sleep(0.2 * failures)
                continue
            if news is None:
                failures += 1
                await self._gone_or(what, code, failures)

    async def _gone_or(self, what: str, code: int | None, failures: int) -> None:
        """A look that did not come to its end: is it the sandbox that did?"""
        await self._running(what)
        if code == remote.GONE or failures >= TRIES:
            raise ExecError(f"{what}: its files are gone and so is its exit code", ref=self.ref, outcome="unknown")
        await asyncio.sleep(0.1 * failures)

    async def _execute(
        self, command: str, what: str, *, env: Mapping[str, str] | None = None, started: bool = False
    ) -> tuple[int | None, str]:
        import daytona_toolbox_api_client_async as toolbox

        # The vendor ends a command after 10 s unless it is told otherwise.
        request = toolbox.ExecuteRequest(command=command, timeout=remote.WINDOW_S + 40, envs=dict(env or {}) or None)

        async def run(clients: Clients) -> Any:
            return await clients.toolbox(self._base)[0].execute_command(request)

        try:
            found = await self._api.call(what, run, ref=self.ref, started=started, timeout=remote.WINDOW_S + 60)
        except SandboxGone as error:
            await self._running(what, error)
            raise
        except OpenEnvError:
            await self._running(what)
            raise
        return found.exit_code, found.result or ""

    async def _running(self, what: str, cause: OpenEnvError | None = None) -> None:
        """Raise `SandboxGone` unless the sandbox runs; what cannot be told raises nothing."""
        try:
            now = await self._look()
        except SandboxGone as error:
            text = f"{what}: the sandbox is gone"
            raise SandboxGone(text, ref=self.ref, outcome="unknown") from (cause or error)
        except OpenEnvError:
            return
        if now.status == "paused":
            raise ExecError(f"{what}: the sandbox is paused", ref=self.ref, hint="resume it first") from cause
        if now.status in ("stopped", "failed"):
            text = f"{what}: the sandbox ended meanwhile ({now.status})"
            raise SandboxGone(text, ref=self.ref, outcome="unknown") from cause

    async def _upload(self, path: str, data: bytes, what: str) -> None:
        async def run(clients: Clients) -> Any:
            return await clients.toolbox(self._base)[1].upload_file(path, ("data", data))

        patience = self._api.timeout_s + len(data) / (256 << 10)
        await self._api.call(f"{what}: sending its input", run, ref=self.ref, timeout=patience)

    async def _home(self) -> str:
        """The folder for what commands need, made once; only its user can read it."""
        made = self._folder
        if made is None or (made.done() and (made.cancelled() or made.exception() is not None)):
            made = self._folder = asyncio.ensure_future(self._make_home())
        return await asyncio.shield(made)

    async def _make_home(self) -> str:
        nonce = secrets.token_hex(8)
        command = remote.line(remote.HOME, secrets.token_hex(8), nonce)
        return remote.home((await self._execute(command, "preparing for commands"))[1], nonce)

    @property
    def _base(self) -> str:
        return f"{self._toolbox.rstrip('/')}/{self.ref.id}"

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
        pause = 0.25
        while True:
            try:
                if (await self._look()).status in ("stopped", "failed"):
                    return Exit(None)
            except SandboxGone:
                return Exit(None)
            except OpenEnvError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 10.0)

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
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + CHANGE_S, 0.05
        while (status := (await self._look()).status) not in wanted:
            if status == "failed":
                raise ProviderError(f"{what} failed: the sandbox is in an error state", ref=self.ref)
            if loop.time() > deadline:
                text = f"{what} did not end within {CHANGE_S:g} s"
                raise ProviderError(text, ref=self.ref, outcome="unknown", retryable=True)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    async def delete(self) -> None:
        """Like `DaytonaProvider.delete`."""
        await convert.delete(self._api, self.ref)
