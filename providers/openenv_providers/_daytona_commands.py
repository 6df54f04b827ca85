"""Running commands in one daytona sandbox: the requests, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from openenv_providers import _daytona_exec as remote
from openenv_sandbox.errors import ExecError, OpenEnvError, SandboxGone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from openenv_providers._daytona_api import Api, Clients
    from openenv_sandbox.provider import OutputSink, SandboxInfo, SandboxRef

TRIES = 4
"""So many looks at a running command may fail in a row."""
PAUSED_S = 1.0
"""How often a paused sandbox is looked at while a command in it waits, in seconds."""


class Commands:
    """The commands of one sandbox.

    Args:
        api: The account.
        ref: The sandbox.
        base_url: Its toolbox.
        look: Asks what state it is in.
    """

    def __init__(self, api: Api, ref: SandboxRef, base_url: str, look: Callable[[], Awaitable[SandboxInfo]]) -> None:
        self._api, self._ref, self._base, self._look = api, ref, base_url, look
        self._folder: asyncio.Task[str] | None = None
        self._finished: list[str] = []
        self._count = 0

    async def run(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bytes, on_output: OutputSink
    ) -> int | None:
        """Run ``argv`` and return its exit code; None when nobody knows it.

        Raises:
            ExecError: It cannot be run, or what became of it is not known.
            SandboxGone: The sandbox ended.
        """
        what = f"running {argv[0]}"
        for last in (False, True):
            folder, nonce = await self._place(), secrets.token_hex(8)
            code, text = await self._start(what, folder, nonce, argv, env, cwd, stdin)
            if code == remote.NO_CWD:
                raise ExecError(f"{what}: no directory {cwd!r} in the sandbox", ref=self._ref)
            if code != remote.NO_FOLDER:
                break
            self._folder = None  # somebody emptied /tmp; nothing was started
            if last:
                raise ExecError(f"{what}: no folder for its output", ref=self._ref, hint="make /tmp writable")
        try:
            return await self._follow(what, folder, remote.news(text, nonce), on_output)
        finally:
            self._finished.append(folder)

    async def _place(self) -> str:
        home = await self._home()
        self._count += 1
        return f"{home}/{self._count}"

    async def _start(
        self,
        what: str,
        folder: str,
        nonce: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bytes,
    ) -> tuple[int | None, str]:
        """The request that starts it and brings the first news; without an answer the folder tells what there is."""
        sources: list[str] = []
        for start in range(0, len(stdin), remote.CHUNK):
            sources.append(f"{folder}.in{len(sources)}")
            await self._upload(sources[-1], stdin[start : start + remote.CHUNK], what)
        gone, self._finished = self._finished, []
        words = (nonce, str(remote.CHUNK), folder, " ".join(sources), cwd or "", " ".join(gone), *argv)
        command = remote.line(remote.START, *words)
        if len(command) > remote.LONGEST:
            command = f"/bin/sh {folder}.sh"
            await self._upload(f"{folder}.sh", remote.as_file(remote.START, *words), what)
            self._finished.append(f"{folder}.sh")
        try:
            return await self._execute(command, what, env=env, started=True)
        except SandboxGone:
            raise
        except OpenEnvError as error:
            if error.outcome == "failed" or not error.retryable:
                raise
            return None, ""

    async def _follow(self, what: str, folder: str, news: remote.News | None, on_output: OutputSink) -> int | None:
        told, failures = [0, 0], 0
        while True:
            if news is not None:
                failures = 0
                for index, data in enumerate((news.stdout, news.stderr)):
                    told[index] += len(data)
                    if data:
                        on_output("stderr" if index else "stdout", data)
                if news.over:
                    return news.code
            nonce = secrets.token_hex(8)
            words = (nonce, str(remote.CHUNK), folder, str(told[0]), str(told[1]))
            try:
                code, text = await self._execute(remote.line(remote.NEXT, *words), what, patient=True)
            except OpenEnvError as error:
                # The offsets make every look repeatable; one that fails is no news of the command.
                failures, news = failures + 1, None
                if isinstance(error, SandboxGone) or not error.retryable or failures >= TRIES:
                    error.outcome = "unknown"
                    raise
                await asyncio.sleep(0.2 * failures)
                continue
            if (news := remote.news(text, nonce)) is None:
                failures += 1
                await self._running(what, patient=True)
                if code == remote.GONE or failures >= TRIES:
                    text = f"{what}: its files are gone and so is its exit code"
                    raise ExecError(text, ref=self._ref, outcome="unknown")
                await asyncio.sleep(0.1 * failures)

    async def _execute(
        self,
        command: str,
        what: str,
        *,
        env: Mapping[str, str] | None = None,
        started: bool = False,
        patient: bool = False,
    ) -> tuple[int | None, str]:
        import daytona_toolbox_api_client_async as toolbox

        # The vendor ends a command after 10 s unless it is told otherwise.
        request = toolbox.ExecuteRequest(command=command, timeout=remote.WINDOW_S + 40, envs=dict(env or {}) or None)

        async def run(clients: Clients) -> Any:
            return await clients.toolbox(self._base)[0].execute_command(request)

        try:
            found = await self._api.call(what, run, ref=self._ref, started=started, timeout=remote.WINDOW_S + 60)
        except OpenEnvError as error:
            await self._running(what, error, patient=patient)
            raise
        return found.exit_code, found.result or ""

    async def _running(self, what: str, cause: OpenEnvError | None = None, *, patient: bool = False) -> None:
        """Raise unless the sandbox runs; what cannot be told raises nothing. If ``patient``, a pause is waited out.

        Raises:
            SandboxGone: It ended.
            ExecError: It is paused.
        """
        try:
            while True:
                now = await self._look()
                if now.status != "paused" or not patient:
                    break
                await asyncio.sleep(PAUSED_S)
        except SandboxGone as error:
            text = f"{what}: the sandbox is gone"
            raise SandboxGone(text, ref=self._ref, outcome="unknown") from (cause or error)
        except OpenEnvError:
            return
        if now.status == "paused":
            raise ExecError(f"{what}: the sandbox is paused", ref=self._ref, hint="resume it first") from cause
        if now.status in ("stopped", "failed"):
            text = f"{what}: the sandbox ended meanwhile ({now.status})"
            raise SandboxGone(text, ref=self._ref, outcome="unknown") from cause

    async def _upload(self, path: str, data: bytes, what: str) -> None:
        async def run(clients: Clients) -> Any:
            return await clients.toolbox(self._base)[1].upload_file(path, ("data", data))

        try:
            await self._api.call(f"{what}: sending its input", run, ref=self._ref)
        except OpenEnvError as error:
            await self._running(what, error)
            raise

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
