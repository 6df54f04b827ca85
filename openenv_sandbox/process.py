"""Processes that outlive the call that started them.

`spawn` starts a supervisor inside the sandbox, detached from the backend's exec: a stream that is cut, an idle limit or
a reconnect does not end the process. Its output goes to bounded files, its exit code to another; everything later is an
ordinary command that looks at them. Any handle with the same id, in any process, sees the same.
"""

from __future__ import annotations

import asyncio
import secrets as random
from typing import TYPE_CHECKING, Literal, Protocol

from openenv_sandbox.errors import ExecError, ExecTimeout, FileError
from openenv_sandbox.lifecycle import finish
from openenv_sandbox.shell import ExecResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openenv_sandbox.provider import OutputSink, SandboxRef
    from openenv_sandbox.shell import Command

Stream = Literal["stdout", "stderr"]
LOG_LIMIT = 4 * 1024 * 1024
"""Bytes after which a log file is put aside; the one before it is kept, an older one is not."""
WAIT_S = 20.0
"""Seconds of one waiting command; short enough for every proxy that cuts quiet connections."""

_FIND = 'for d in "$TMPDIR" /tmp /dev/shm /var/tmp; do [ "$d" ] && d=$d/.oe-process-$1 && [ -d "$d" ] && break; done\n'

# The logger reads in large blocks but writes what it got at once; after 64 reads it looks at the size. It must go on
# reading when the disk is full, or the process would block on its own output.
_START = r"""
for __d in "$TMPDIR" /tmp /dev/shm /var/tmp; do
  [ "$__d" ] && [ -d "$__d" ] && __d=$__d/.oe-process-$1 && (umask 077; mkdir "$__d") 2>/dev/null && break
  __d=
done
[ "$__d" ] || { echo "no writable folder for the process's output" >&2; exit 121; }
command -v "$4" >/dev/null 2>&1 || { rm -rf "$__d"; echo "no program $4" >&2; exit 122; }
mkfifo "$__d/in" "$__d/out.fifo" "$__d/err.fifo" || exit 121
__s=$(command -v setsid)
cat >"$__d/run" <<'END'
__d=$1 __mark=$2 __limit=$3 __in=$4; shift 4
keep() {
  while :; do
    dd bs=65536 count=64 >>"$__d/$1" 2>/dev/null || { dd bs=65536 of=/dev/null 2>/dev/null; break; }
    __n=$(wc -c <"$__d/$1")
    [ "$__n" != "$__was" ] || break
    __was=$__n
    [ "$__n" -lt "$__limit" ] || { mv -f "$__d/$1" "$__d/$1.old"; __was=; }
  done
}
: >"$__d/out"; : >"$__d/err"
(__was=; keep out) <"$__d/out.fifo" >/dev/null 2>&1 & __l=$!
(__was=; keep err) <"$__d/err.fifo" >/dev/null 2>&1 & __m=$!
__h=
__i=/dev/null
[ "$__in" != stdin ] || { __i=$__d/in; sleep 999999999 3<>"$__i" </dev/null >/dev/null 2>&1 & __h=$!; }
echo "$$ $__h" >"$__d/supervisor"
(
  read -r __p __q 2>/dev/null </proc/self/stat || __p=$(exec /bin/sh -c 'echo $PPID')
  echo "$__p" >"$__d/pid.new"; mv "$__d/pid.new" "$__d/pid"
  OPENENV_EXEC=$__mark; export OPENENV_EXEC
  exec "$@"
) <"$__i" >"$__d/out.fifo" 2>"$__d/err.fifo"
__r=$?
[ -z "$__h" ] || kill "$__h"
# What a process left in the background still writes is not waited for.
__i=0
while [ $__i -lt 10 ] && { kill -0 $__l || kill -0 $__m; } 2>/dev/null; do
  __i=$((__i + 1)); sleep 0.02 2>/dev/null || sleep 1
done
echo "$__r" >"$__d/code.new"; mv "$__d/code.new" "$__d/code"
END
$__s /bin/sh "$__d/run" "$__d" "$@" </dev/null >/dev/null 2>&1 &
while [ ! -s "$__d/pid" ]; do sleep 0.01 2>/dev/null || sleep 1; done
"""

# Prints the exit code; status 10: still running, 11: its supervisor was killed, 12: no such process.
_POLL = (
    _FIND
    + r"""
[ -d "$d" ] || exit 12
e=0
while :; do
  [ ! -f "$d/code" ] || { cat "$d/code"; exit 0; }
  read -r q h <"$d/supervisor" || exit 12
  z=; [ ! -r "/proc/$q/status" ] || while read -r a z x; do [ "$a" != State: ] || break; z=; done <"/proc/$q/status"
  [ "$z" != Z ] && kill -0 "$q" 2>/dev/null || { [ -f "$d/code" ] || exit 11; continue; }
  [ "$e" -lt "$2" ] || exit 10
  e=$((e + 1)); sleep 0.1 2>/dev/null || { sleep 1; e=$((e + 9)); }
done
"""
)

_SPOKE = (
    _FIND
    + r"""
[ -d "$d" ] || exit 12
e=0
while [ ! -s "$d/out" ] && [ ! -s "$d/err" ] && [ ! -f "$d/code" ]; do
  [ "$e" -lt "$2" ] || exit 10
  e=$((e + 1)); sleep 0.1 2>/dev/null || { sleep 1; e=$((e + 9)); }
done
"""
)

_LOGS = (
    _FIND + '[ -d "$d" ] || exit 12\ncat "$d/$2.old" "$d/$2" 2>/dev/null | if [ "$3" ]; then tail -c "$3"; else cat; fi'
)
_STDIN = _FIND + '[ -d "$d" ] || exit 12\n[ ! -f "$d/code" ] || exit 13\n[ "$2" = 0 ] || cat >"$d/in"\n'
_CLOSE_STDIN = _FIND + '[ -d "$d" ] || exit 12\nread -r q h <"$d/supervisor"\n[ -z "$h" ] || kill "$h"'
_REMOVE = _FIND + '[ ! -d "$d" ] || rm -rf "$d"'


class Runner(Protocol):
    """What a `Process` needs of its sandbox."""

    @property
    def ref(self) -> SandboxRef:
        """The sandbox's name."""

    async def _command(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        max_output: int = ...,
        redact: bool = ...,
        expendable: bool = ...,
    ) -> ExecResult:
        """Run one short command."""

    def _longest_wait(self) -> float:
        """How many seconds one command may take here."""

    async def _kill_marked(self, cookie: str, signal: str) -> bool:
        """Signal every process that carries ``cookie``; whether none is left (for KILL)."""


class Process:
    """A process inside a sandbox, made by `RunningSandbox.spawn`.

    Attributes:
        id: Names it; `RunningSandbox.process` makes another handle from it.
    """

    def __init__(self, runner: Runner, id: str) -> None:
        self._runner = runner
        self.id = id

    def __repr__(self) -> str:
        return f"<Process {self.id} in {self._runner.ref}>"

    async def poll(self) -> int | None:
        """Its exit code; None while it runs.

        Raises:
            ExecError: Its exit code was lost, or there is no such process.
        """
        return await self._poll(0.0)

    async def wait(self, *, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code. The process goes on when the wait is given up.

        Args:
            timeout: Seconds; None waits as long as the process runs.

        Raises:
            ExecTimeout: It still runs.
            ExecError: Its exit code was lost, or there is no such process.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            window = min(WAIT_S, self._runner._longest_wait())
            left = window if deadline is None else min(window, deadline - loop.time())
            code = await self._poll(max(left, 0.0))
            if code is not None:
                return code
            if deadline is not None and loop.time() >= deadline:
                raise ExecTimeout(
                    f"the process still runs after {timeout:g} s",
                    tree_killed=False,
                    ref=self._runner.ref,
                    hint="it goes on; kill() ends it",
                )

    async def _poll(self, wait_s: float) -> int | None:
        result = await self._run(_POLL, str(int(wait_s * 10)), looks=True)
        if result.exit_code == 10:
            return None
        text = result.stdout.strip()
        if result.exit_code != 0 or not text.isdigit():
            raise ExecError(
                f"process {self.id} was ended together with its supervisor: its exit code is lost",
                ref=self._runner.ref,
                outcome="unknown",
            )
        return int(text)

    async def spoke(self) -> None:
        """Return when it has written something, or has ended."""
        window = str(int(min(WAIT_S, self._runner._longest_wait()) * 10))
        while (await self._run(_SPOKE, window, looks=True)).exit_code == 10:
            pass

    async def kill(self, signal: Literal["TERM", "KILL", "HUP"] = "KILL") -> None:
        """Send ``signal`` to the process and everything it started. Like every detached process it ignores SIGINT."""
        await self._runner._kill_marked(self.id, signal)

    async def logs(self, stream: Stream = "stdout", *, tail: int | None = None) -> bytes:
        """What it wrote so far, at least the last 4 MiB of it.

        Args:
            stream: Which of the two.
            tail: Only so many bytes from the end.
        """
        name = "out" if stream == "stdout" else "err"
        return (await self._run(_LOGS, name, "" if tail is None else str(tail))).stdout

    async def write_stdin(self, data: bytes, *, eof: bool = False) -> None:
        """Send input to a process started with ``stdin=True``.

        Args:
            data: The bytes.
            eof: Close its input afterwards.

        Raises:
            ExecError: The process has ended.
        """
        for start in range(0, len(data), 1 << 20):
            piece = data[start : start + (1 << 20)]
            result = await self._run(_STDIN, str(len(piece)), stdin=piece)
            if result.exit_code == 13:
                raise ExecError(f"process {self.id} has ended and takes no input", ref=self._runner.ref)
        if eof:
            await self._run(_CLOSE_STDIN)

    async def aclose(self) -> None:
        """Remove its files. The process itself goes on; `kill` ends it."""
        await self._run(_REMOVE)

    async def _run(self, script: str, *args: str, stdin: bytes | None = None, looks: bool = False) -> ExecResult:
        argv = ["/bin/sh", "-c", script, "oe", self.id, *args]
        result = await self._runner._command(
            argv, stdin=stdin, max_output=4 * LOG_LIMIT, redact=True, expendable=looks
        )  # fmt: skip
        if result.exit_code == 12:
            raise ExecError(f"no process {self.id} in the sandbox", ref=self._runner.ref)
        return result


async def spawn(
    runner: Runner,
    argv: Sequence[str],
    *,
    stdin: bool,
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
) -> Process:
    """Start ``argv`` detached; see `RunningSandbox.spawn`."""
    process = Process(runner, random.token_hex(8))
    words = ["/bin/sh", "-c", _START, "oe", process.id, str(LOG_LIMIT), "stdin" if stdin else "-", *argv]
    result = await runner._command(words, env=env, cwd=cwd, user=user)
    if result.exit_code == 122:
        raise ExecError(f"no program {argv[0]!r} in the sandbox", ref=runner.ref)
    if result.exit_code == 121:
        raise FileError(
            "no writable folder in the sandbox for the process's output", ref=runner.ref, hint="make /tmp writable"
        )
    if result.exit_code != 0:
        text = result.stderr.decode("utf-8", "replace").strip()
        raise ExecError(f"the process could not be started: {text or result.exit_code}", ref=runner.ref)
    return process


async def run_detached(runner: Runner, command: Command, kept: int, sink: OutputSink | None) -> ExecResult:
    """Run a command that takes longer than the backend lets one run: detached, then waited for in pieces.

    Output is handed to ``sink`` at the end. Raises what `RunningSandbox.exec` raises.
    """
    has_input = command.stdin is not None
    process = await spawn(
        runner, command.argv, stdin=has_input, env=command.env, cwd=command.cwd, user=command.user
    )  # fmt: skip
    try:
        if isinstance(command.stdin, bytes):
            await process.write_stdin(command.stdin, eof=True)
        elif command.stdin is not None:
            async for piece in command.stdin:
                await process.write_stdin(piece)
            await process.write_stdin(b"", eof=True)
        code = await process.wait(timeout=command.timeout)
    except ExecTimeout:
        await process.kill()
        raise ExecTimeout(
            f"the command did not end within {command.timeout:g} s",
            stdout=(await process.logs())[:kept],
            stderr=(await process.logs("stderr"))[:kept],
            ref=runner.ref,
            hint="raise timeout=",
        ) from None
    except BaseException:
        await finish(process.kill(), timeout=10.0)
        raise
    streams: dict[Stream, bytes] = {"stdout": await process.logs(), "stderr": await process.logs("stderr")}
    await process.aclose()
    if sink is not None:
        for name, data in streams.items():
            sink(name, data)
    cut = any(len(data) > kept for data in streams.values())
    return ExecResult(code, streams["stdout"][:kept], streams["stderr"][:kept], cut)
