"""One command in a sandbox of e2b or novita, followed to its end whatever happens to the connection.

The daemon's event stream crosses a shared proxy that may cut it while the process lives, and a pause always does:
then the process is followed again by its pid, or by its tag where the first reply never came.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import AuthError, ExecError, OpenEnvError, ProviderUnavailable, RateLimited
from openenv_sandbox.provider import OutputSink, RawResult
from openenv_sandbox.redact import clean, mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from openenv_providers._e2b_sandbox import CloudSandbox
    from openenv_providers._e2b_sdk import Event

_CHUNK = 1 << 17
_TRIES = 5
"""Connections in a row that may bring nothing."""
_SIGNALS = {
    "hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5, "aborted": 6,
    "bus error": 7, "floating point exception": 8, "killed": 9, "user defined signal 1": 10, "segmentation fault": 11,
    "user defined signal 2": 12, "broken pipe": 13, "alarm clock": 14, "terminated": 15,
}  # fmt: skip
_UNREACHED = ("unavailable", None)


class Follower:
    """Runs one command.

    Args:
        sandbox: Where.
        on_output: Receives output.
    """

    def __init__(self, sandbox: CloudSandbox, on_output: OutputSink) -> None:
        self._sandbox, self._cloud, self._on_output = sandbox, sandbox.cloud, on_output
        self._tag = f"oe-{secrets.token_hex(8)}"
        self._pid: int | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._unfed: Exception | None = None
        self._fruitless = 0
        self._start: Callable[[], AsyncIterator[Event]]

    async def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bytes | AsyncIterator[bytes] | None,
    ) -> RawResult:
        """Start it and wait for its end.

        Raises:
            ExecError: It cannot be run, or its input could not be delivered.
            SandboxGone: The sandbox ended.
        """
        handle = await self._sandbox.handle()
        self._start = partial(self._cloud.start, handle, argv, env, cwd, stdin is not None, self._tag)
        stream = self._start()
        try:
            while True:
                broke: Exception | None = None
                try:
                    ended = await self._read(stream, stdin)
                except OpenEnvError:
                    raise
                except Exception as error:
                    ended, broke = None, error
                if ended is not None:
                    return self._result(ended)
                again = await self._again(argv, broke)
                if again is None:
                    return RawResult(None)
                stream = again
        finally:
            if self._feeder is not None:
                self._feeder.cancel()
                await asyncio.wait({self._feeder}, timeout=5.0)

    async def _read(self, stream: AsyncIterator[Event], stdin: bytes | AsyncIterator[bytes] | None) -> Event | None:
        async with contextlib.aclosing(stream):  # type: ignore[type-var]  # they are generators
            async for event in stream:
                if event.kind == "start":
                    self._pid = event.number
                    if stdin is not None and self._feeder is None:
                        self._feeder = asyncio.get_running_loop().create_task(self._feed(event.number, stdin))
                elif event.kind in ("stdout", "stderr"):
                    self._fruitless = 0
                    self._on_output(event.kind, event.data)
                elif event.kind == "end":
                    return event
        return None

    def _result(self, end: Event) -> RawResult:
        if self._unfed is not None:
            raise ExecError(
                f"the command's input could not be delivered: {_words(self._unfed)}",
                ref=self._sandbox.ref,
                outcome="unknown",
            ) from self._unfed
        if end.exited or end.number > 0:
            return RawResult(end.number & 0xFF)
        match = re.match(r"signal: ([a-z0-9/ ]+?)( \(core dumped\))?\Z", end.status)
        number = _SIGNALS.get(match[1]) if match else None
        return RawResult(128 + number if number else None)

    async def _again(self, argv: Sequence[str], broke: Exception | None) -> AsyncIterator[Event] | None:
        """Another stream of the same process; None when it is over and nobody knows how."""
        code = self._cloud.code(broke) if broke is not None else None
        handle = await self._sandbox.handle()
        if self._pid is None and broke is not None and code not in _UNREACHED:
            raise self._refused(argv, broke, code)
        if self._pid is not None and code == "not_found":
            return None
        await self._wait_for_the_sandbox()
        self._fruitless += 1
        if self._fruitless > _TRIES:
            raise ProviderUnavailable(
                f"the daemon in the sandbox cannot be reached: {_words(broke)}",
                ref=self._sandbox.ref,
                outcome="unknown",
                retryable=True,
            ) from broke
        await asyncio.sleep(min(2.0, 0.05 * 3**self._fruitless))
        if self._pid is None and code == "unavailable":
            return self._start()  # the proxy said that the daemon never got it
        return self._cloud.follow(handle, self._pid, self._tag)

    async def _wait_for_the_sandbox(self) -> None:
        pause = 0.2
        while await self._sandbox.state() == "paused":
            self._fruitless = 0
            await self._sandbox.resumed_or(pause)
            pause = min(5.0, pause * 1.5)

    def _refused(self, argv: Sequence[str], error: Exception, code: str | None) -> OpenEnvError:
        ref, text = self._sandbox.ref, _words(error)
        if code == "unauthenticated":
            return AuthError(f"the sandbox refused our token: {text}", ref=ref)
        if code == "resource_exhausted":
            return RateLimited(f"the sandbox asks to slow down: {text}", ref=ref)
        if code == "not_found":  # only looked for by its tag: whether it ever ran is unknown
            return ExecError(f"the command's start was not confirmed: {text}", ref=ref, outcome="unknown")
        return ExecError(f"{argv[0]!r} cannot be run: {text}", ref=ref)

    async def _feed(self, pid: int, stdin: bytes | AsyncIterator[bytes]) -> None:
        handle = await self._sandbox.handle()
        try:
            async for chunk in _chunks(stdin):
                await self._cloud.send(handle, pid, chunk)
            await self._cloud.close_stdin(handle, pid)
        except Exception as error:
            if self._cloud.code(error) == "not_found":
                return  # it ended without reading all of it
            # Sending again could send twice; a command that waits for the rest would wait for ever.
            self._unfed = error
            with contextlib.suppress(Exception):
                await self._cloud.kill(handle, pid)


async def _chunks(stdin: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(stdin, bytes):
        for start in range(0, len(stdin), _CHUNK):
            yield stdin[start : start + _CHUNK]
        return
    async for piece in stdin:
        for start in range(0, len(piece), _CHUNK):
            yield piece[start : start + _CHUNK]


def _words(error: Any) -> str:
    text = getattr(error, "message", None) or str(error)
    return clean(mask(f"{type(error).__name__}: {text}" if text else type(error).__name__))[:300]
