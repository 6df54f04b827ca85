"""One command with the wrapper of `openenv_sandbox._shell_script` around it, and what every command needs."""

from __future__ import annotations

import asyncio
import math
import secrets as random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from openenv_sandbox._shell_script import COLLECT, FROM_FILES, KILL, SIGNAL, WRAPPER
from openenv_sandbox._shell_stream import Decoder, Output
from openenv_sandbox.errors import CapabilityError, ExecError, ExecTimeout, FileError
from openenv_sandbox.lifecycle import finish, keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.provider import OutputSink, RawResult, Sandbox

MAX_OUTPUT = 10 * 1024 * 1024
"""Bytes kept of each stream unless the call says otherwise."""
GRACE_S = 2.0
"""Between the polite and the final signal at a deadline."""
BACKSTOP_S = 5.0
"""How much later than the deadline inside the sandbox we give up from outside."""
SH = "/bin/sh"
_PUT_CHUNK = 1024 * 1024
_SLOWEST_INPUT = 256 * 1024  # bytes per second; input that is still on its way must not look like a hanging command


@dataclass(frozen=True)
class ExecResult:
    """Outcome of a command.

    Attributes:
        exit_code: 0 to 255; 128 + n when signal n ended it.
        stdout: At most the limit of the call.
        stderr: Likewise.
        truncated: More was written than is kept.
    """

    exit_code: int
    stdout: bytes = field(default=b"", repr=False)
    stderr: bytes = field(default=b"", repr=False)
    truncated: bool = False

    def text(self, *, errors: str = "replace") -> str:
        """``stdout`` as text."""
        return self.stdout.decode("utf-8", errors)

    @property
    def ok(self) -> bool:
        """Whether the command succeeded."""
        return self.exit_code == 0


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
        argv: Program and arguments.
        stdin: Input; None for an empty one.
        env: Additional variables.
        cwd: Working directory; None for the sandbox's.
        user: ``name``, ``uid`` or ``uid:gid``; None for the sandbox's.
        timeout: Seconds; None waits for ever.
        grace: Seconds between SIGTERM and SIGKILL at the deadline.
        expendable: It only looks and ends soon: when the call is cancelled, no second command is sent to end it.
    """

    argv: Sequence[str]
    stdin: bytes | AsyncIterator[bytes] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    timeout: float | None = None
    grace: float = GRACE_S
    expendable: bool = False


@dataclass
class ShellState:
    """What has been learnt about one sandbox: whether it has a shell (None: not yet known)."""

    has_shell: bool | None = None


def quote(text: str) -> str:
    """``text`` as one word of a shell command."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


async def run_raw(sandbox: Sandbox, command: Command, sink: OutputSink) -> RawResult:
    return await sandbox.exec_raw(
        command.argv, env=command.env, cwd=command.cwd, user=command.user, stdin=command.stdin, on_output=sink
    )


async def end_task(task: asyncio.Task[RawResult]) -> None:
    task.cancel()
    await asyncio.wait({task})


def to_result(sandbox: Sandbox, code: int | None, output: Output) -> ExecResult:
    if output.error is not None:
        raise output.error
    if code is None:
        raise ExecError(
            "the command ended and the backend did not say how", ref=sandbox.ref, outcome="unknown",
            hint="its effects may be there; look before running it again",
        )  # fmt: skip
    stdout, stderr = output.finish()
    return ExecResult(code, stdout, stderr, output.truncated)


def raise_deadline(sandbox: Sandbox, command: Command, output: Output, *, tree_killed: bool) -> NoReturn:
    if output.error is not None:
        raise output.error
    stdout, stderr = output.finish()
    raise ExecTimeout(
        f"the command did not end within {command.timeout:g} s",
        stdout=stdout,
        stderr=stderr,
        tree_killed=tree_killed,
        ref=sandbox.ref,
        hint="raise timeout=" if tree_killed else "raise timeout=; some of its processes may still be running",
    )


class NoShell(Exception):
    """The sandbox has no shell; the command did not run."""


class Wrapped:
    """One wrapped command; `run` it once."""

    def __init__(
        self, sandbox: Sandbox, caps: ExecCapabilities, command: Command, output: Output, state: ShellState
    ) -> None:
        self._sandbox, self._caps, self._command, self._output, self._state = sandbox, caps, command, output, state
        self._cookie = random.token_hex(8)
        self._nonce = random.token_hex(16)
        self._decoder = Decoder(self._nonce, caps.split and caps.binary, output, text=not caps.binary)

    async def run(self) -> ExecResult:
        task = keep(self._start())
        waits = {task, keep(self._decoder.done.wait()), keep(self._output.failed.wait())}
        try:
            await asyncio.wait(waits, timeout=self._backstop(), return_when="FIRST_COMPLETED")
            if self._decoder.done.is_set() and not task.done():
                # A process left in the background may hold the backend's stream open; the command itself has ended.
                await asyncio.wait({task}, timeout=None if self._caps.kill else 0.2)
        except asyncio.CancelledError:
            ending = end_task(task) if self._command.expendable else self._kill(task)
            await finish(ending, timeout=BACKSTOP_S + GRACE_S)
            raise
        finally:
            self._decoder.done.set()
            self._output.failed.set()
        if self._output.error is not None and self._decoder.trailer is None:
            await finish(self._kill(task), timeout=BACKSTOP_S + GRACE_S)
        elif self._decoder.trailer is None and not task.done():
            killed = await finish(self._kill(task), timeout=BACKSTOP_S + GRACE_S)
            self._decoder.flush()
            if self._decoder.trailer is None and not (self._caps.split and self._caps.binary):
                await finish(self._collect(), timeout=BACKSTOP_S)
            raise_deadline(self._sandbox, self._command, self._output, tree_killed=killed.value is True)
        elif not task.done():
            await finish(end_task(task), timeout=BACKSTOP_S)
        return await self._outcome(task)

    def _backstop(self) -> float | None:
        if self._command.timeout is None:
            return None
        size = len(self._command.stdin) if isinstance(self._command.stdin, bytes) else 0
        return self._command.timeout + self._command.grace + BACKSTOP_S + size / _SLOWEST_INPUT

    async def _start(self) -> RawResult:
        command, caps = self._command, self._caps
        by_stdin = caps.stdin or self._sandbox_puts()
        stdin = command.stdin
        if isinstance(stdin, AsyncIterator) and not (caps.stdin and caps.stdin_stream):
            stdin = b"".join([chunk async for chunk in stdin])
        native_env = caps.env and not by_stdin
        if not by_stdin and (stdin is not None or (command.env and not native_env)):
            raise CapabilityError(
                f"commands of {self._sandbox.ref.provider} take no {'env' if stdin is None else 'stdin'}",
                field="env" if stdin is None else "stdin",
                ref=self._sandbox.ref,
            )
        size = "-" if stdin is None else str(len(stdin)) if isinstance(stdin, bytes) else "+"
        timeout = command.timeout
        argv = [
            SH, "-c", WRAPPER, "oe", self._cookie,
            "-" if timeout is None else f"{timeout:.3f}", "-" if timeout is None else str(math.ceil(timeout)),
            str(math.ceil(command.grace / 0.05)), "-" if size == "0" else size,
            "text" if not caps.binary else "split" if caps.split else "merged", "" if caps.cwd else command.cwd or "",
            "" if caps.user else command.user or "", "" if by_stdin else self._nonce, *command.argv,
        ]  # fmt: skip
        raw = replace(
            command,
            argv=argv,
            stdin=None,
            env=command.env if native_env else {},
            cwd=command.cwd if caps.cwd else None,
            user=command.user if caps.user else None,
        )
        if by_stdin:
            raw = await self._with_input(raw, self._header(), stdin)
        return await run_raw(self._sandbox, raw, self._decoder)

    def _header(self) -> bytes:
        lines = [f"export {name}={quote(value)}" for name, value in self._command.env.items()]
        text = "\n".join([self._nonce, *lines, self._nonce, ""])
        return text.encode("utf-8", "surrogateescape")

    def _sandbox_puts(self) -> bool:
        from openenv_sandbox.provider import Sandbox

        return type(self._sandbox).put is not Sandbox.put

    async def _with_input(self, raw: Command, header: bytes, stdin: bytes | AsyncIterator[bytes] | None) -> Command:
        if isinstance(stdin, AsyncIterator):
            return replace(raw, stdin=_joined(header, stdin))
        data = header + (stdin or b"")
        limit = self._caps.max_stdin
        if self._caps.stdin and (limit is None or len(data) <= limit):
            return replace(raw, stdin=data)
        if not self._caps.stdin:
            return await self._by_files(raw, data)
        return await self._by_pieces(raw, data, limit or len(data))

    async def _by_files(self, raw: Command, data: bytes) -> Command:
        """Input as files made by `Sandbox.put`, for backends whose commands take none."""
        names = []
        for index, start in enumerate(range(0, len(data), _PUT_CHUNK)):
            names.append(f"/tmp/.oe-{self._cookie}-{index:05d}")
            await self._sandbox.put(names[-1], data[start : start + _PUT_CHUNK])
        return replace(raw, argv=[SH, "-c", FROM_FILES, "oe", " ".join(names), *raw.argv[2:]])

    async def _by_pieces(self, raw: Command, data: bytes, limit: int) -> Command:
        """Input in pieces that the backend lets through, collected in a file."""
        name = f"/tmp/.oe-{self._cookie}-in"
        for start in range(0, len(data), limit):
            piece = Command([SH, "-c", f"umask 077; cat >>{name}"], stdin=data[start : start + limit])
            outcome = await run_raw(self._sandbox, piece, lambda stream, chunk: None)
            if outcome.exit_code != 0:
                raise FileError(f"the input could not be stored in {name}", ref=self._sandbox.ref)
        return replace(raw, argv=[SH, "-c", FROM_FILES, "oe", name, *raw.argv[2:]])

    async def _kill(self, task: asyncio.Task[RawResult]) -> bool:
        """End the command's processes by a second command; whether none is left."""
        try:
            return await signal_marked(self._sandbox, self._cookie, "KILL", wrapper=True)
        finally:
            await end_task(task)

    async def _collect(self) -> None:
        """What the wrapper, killed from outside, could no longer send; it may have begun to."""
        if not self._caps.binary and self._output.began:
            return
        half = len(self._cookie) // 2
        mode, text = ("merged", False) if self._caps.binary else ("text", True)
        argv = [SH, "-c", COLLECT, "oe", self._cookie[:half], self._cookie[half:], mode, self._nonce]
        decoder = Decoder(self._nonce, False, self._output, text=text)
        await run_raw(self._sandbox, Command(argv), decoder)

    async def _outcome(self, task: asyncio.Task[RawResult]) -> ExecResult:
        trailer = self._decoder.trailer
        ref = self._sandbox.ref
        self._decoder.flush()
        if trailer is None:
            await self._without_trailer(task)
        assert trailer is not None
        self._state.has_shell = True
        command, flag = self._command, trailer.flag
        if flag in ("t", "l"):
            raise_deadline(self._sandbox, command, self._output, tree_killed=flag == "t")
        if flag == "n":
            raise ExecError(f"no program {command.argv[0]!r} in the sandbox", ref=ref)
        if flag == "d":
            raise ExecError(f"no directory {command.cwd!r} in the sandbox", ref=ref)
        if flag == "u":
            raise CapabilityError(
                f"commands cannot run as user {command.user!r} here", field="user", ref=ref,
                hint="the user must exist, and the sandbox's own user must be root with setpriv or su in the image",
            )  # fmt: skip
        if flag == "i":
            raise ExecError("the backend delivered less input than was sent; the command was not run", ref=ref)
        if flag == "e":
            raise ExecError(
                "the backend delivers output as text, and nothing in the sandbox encodes bytes",
                ref=ref,
                hint="put base64 or od into the image",
            )
        if flag == "y":
            raise ExecError(
                "no writable folder in the sandbox for the command's stderr",
                ref=ref,
                hint="make /tmp or /dev/shm writable",
            )
        if not self._decoder.complete:
            raise ExecError(
                f"the command ended with code {trailer.code}, but its output broke off on the way",
                ref=ref,
                outcome="unknown",
            )
        return to_result(self._sandbox, trailer.code, self._output)

    async def _without_trailer(self, task: asyncio.Task[RawResult]) -> NoReturn:
        error = task.exception() if task.done() and not task.cancelled() else None
        code = task.result().exit_code if error is None and task.done() and not task.cancelled() else None
        if self._output.error is not None:
            raise self._output.error
        if self._state.has_shell is None and ((type(error) is ExecError and not error.retryable) or code in (126, 127)):
            if not await self._probe():
                raise NoShell
            self._state.has_shell = True
        if error is not None:
            raise error
        raise ExecError(
            f"the command was ended from outside (exit code {'unknown' if code is None else code})",
            ref=self._sandbox.ref,
            outcome="unknown",
            hint="the sandbox may be stopping, or out of memory",
        )

    async def _probe(self) -> bool:
        try:
            result = await run_raw(self._sandbox, Command([SH, "-c", "exit 33"]), lambda stream, chunk: None)
        except ExecError:
            return False
        return result.exit_code == 33


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def signal_marked(sandbox: Sandbox, cookie: str, signal: str, *, wrapper: bool = False) -> bool:
    """Send ``signal`` to every process that carries ``cookie``, and to their kin; whether none is left after KILL.

    With ``wrapper`` also to a wrapper that has the cookie as an argument.
    """
    half = len(cookie) // 2
    script, last = (KILL, "w" if wrapper else "") if signal == "KILL" else (SIGNAL, signal)
    argv = [SH, "-c", script, "oe", cookie[:half], cookie[half:], last]
    result = await run_raw(sandbox, Command(argv), lambda stream, chunk: None)
    return result.exit_code == 0
