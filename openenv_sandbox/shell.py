"""Running one command in any sandbox, with everything the backend's own way of running commands lacks.

`run` is the only caller of `Sandbox.exec_raw`. Where the backend can do all that is asked, the command goes through as
it is; else one POSIX-sh wrapper goes around it and supplies deadline, killing of the whole tree, variables (by stdin,
never by argv), working directory, user, separate streams, bounded input and an exit code that output cannot imitate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from openenv_sandbox._shell_stream import Output, watched
from openenv_sandbox._shell_wrapped import (
    BACKSTOP_S,
    MAX_OUTPUT,
    SH,
    Command,
    ExecResult,
    NoShell,
    ShellState,
    Wrapped,
    end_task,
    quote,
    raise_deadline,
    run_raw,
    signal_marked,
    to_result,
)
from openenv_sandbox.errors import CapabilityError, ExecError
from openenv_sandbox.lifecycle import finish, keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.provider import ImageConfig, OutputSink, Sandbox, SandboxRef

__all__ = ["MAX_OUTPUT", "SH", "Command", "ExecResult", "ShellState", "quote", "run", "signal_marked"]


def words(cmd: str | Sequence[str], ref: SandboxRef) -> list[str]:
    """The argv of a command as users write it.

    Raises:
        ExecError: It is none.
    """
    argv = [SH, "-c", cmd] if isinstance(cmd, str) else [str(word) for word in cmd]
    if not argv or not argv[0]:
        raise ExecError("an empty command runs nothing", ref=ref)
    if any("\0" in word for word in argv):
        raise ExecError("a command cannot contain NUL characters", ref=ref)
    return argv


def with_defaults(command: Command, image: ImageConfig) -> Command:
    """``command`` as it runs in a container of ``image``, where it does not say otherwise."""
    return replace(
        command,
        env={**image.env, **command.env},
        cwd=command.cwd or image.workdir,
        user=command.user or image.user,
    )


async def run(
    sandbox: Sandbox,
    caps: ExecCapabilities,
    command: Command,
    *,
    max_output: int = MAX_OUTPUT,
    secrets: Sequence[bytes] = (),
    on_output: OutputSink | None = None,
    state: ShellState | None = None,
) -> ExecResult:
    """Run ``command`` and wait for its end.

    Args:
        sandbox: Where.
        caps: What its ``exec_raw`` can do.
        command: What.
        max_output: Bytes kept of each stream.
        secrets: Values replaced by ``***`` in the output.
        on_output: Called with every chunk, on the event loop, in order.
        state: Shared by the commands of one sandbox.

    Raises:
        ExecTimeout: The deadline passed; the output so far is on it.
        ExecError: The command could not be run, or its exit code is not known.
        CapabilityError: Something was asked that the backend lacks and no shell in the sandbox can supply.
        SandboxGone: The sandbox ended.
    """
    state = state or ShellState()
    output = Output(max_output, secrets, on_output)
    _check_env(sandbox, command.env)
    lacking = _lacking(caps, command)
    if not lacking:
        return await _plain(sandbox, _watched(command, output), output, tree_killed=True)
    if state.has_shell is not False:
        try:
            return await Wrapped(sandbox, caps, _watched(command, output), output, state).run()
        except NoShell:
            state.has_shell = False
        output = Output(max_output, secrets, on_output)
    return await _shell_less(sandbox, caps, _watched(command, output), output, lacking)


def _watched(command: Command, output: Output) -> Command:
    stdin = command.stdin
    return replace(command, stdin=watched(stdin, output)) if isinstance(stdin, AsyncIterator) else command


def _lacking(caps: ExecCapabilities, command: Command) -> list[str]:
    """What ``command`` needs that the backend does not do by itself."""
    size = len(command.stdin) if isinstance(command.stdin, bytes) else 0
    needs = {
        "kill": not caps.kill,
        "split": not caps.split,
        "binary": not caps.binary,
        "env": bool(command.env) and not caps.env,
        "cwd": command.cwd is not None and not caps.cwd,
        "user": command.user is not None and not caps.user,
        "stdin": command.stdin is not None
        and (not caps.stdin or (caps.max_stdin is not None and size > caps.max_stdin)),
    }
    return [name for name, needed in needs.items() if needed]


def _check_env(sandbox: Sandbox, env: Mapping[str, str]) -> None:
    from openenv_sandbox.spec import _ENV_NAME

    for name, value in env.items():
        if not _ENV_NAME.match(name) or "\0" in value:
            raise ExecError(f"{name!r} is not a variable that a command can have", ref=sandbox.ref)


async def _plain(sandbox: Sandbox, command: Command, output: Output, *, tree_killed: bool) -> ExecResult:
    """Without the wrapper: the deadline is ours, and cancelling is the backend's way to end the command."""
    task = keep(run_raw(sandbox, command, output.add))
    try:
        done, _ = await asyncio.wait(
            {task, keep(output.failed.wait())}, timeout=command.timeout, return_when="FIRST_COMPLETED"
        )
    except asyncio.CancelledError:
        await finish(end_task(task), timeout=BACKSTOP_S)
        raise
    finally:
        output.failed.set()
    if task not in done:
        await finish(end_task(task), timeout=BACKSTOP_S)
        raise_deadline(sandbox, command, output, tree_killed=tree_killed)
    return to_result(sandbox, task.result().exit_code, output)


async def _shell_less(
    sandbox: Sandbox, caps: ExecCapabilities, command: Command, output: Output, lacking: list[str]
) -> ExecResult:
    missing = [name for name in lacking if name in ("env", "cwd", "user", "stdin")]
    if missing:
        raise CapabilityError(
            f"{missing[0]}= of a command needs a shell, and this sandbox has no {SH}",
            field=missing[0],
            ref=sandbox.ref,
            hint="use an image with /bin/sh, or leave it out",
        )
    if command.argv and command.argv[0] == SH:
        raise ExecError(f"this sandbox has no {SH}", ref=sandbox.ref, hint="give the command as a list of words")
    return await _plain(sandbox, command, output, tree_killed=caps.kill)
