"""``openenv exec``: a command in a sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Literal

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.options import pairs
from openenv_sandbox.cli.sandboxes import reached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openenv_sandbox.cli.terminal import Terminal


@click.command("exec", short_help="Run a command in a sandbox.", context_settings={"ignore_unknown_options": True})
@click.argument("ref")
@click.argument("argv", nargs=-1, required=True, metavar="COMMAND…", type=click.UNPROCESSED)
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input on.")
@click.option("-e", "--env", multiple=True, metavar="K=V", help="Variable; repeatable.")
@click.option("-w", "--cwd", help="Working folder.")
@click.option("-u", "--user", help="User.")
@click.option("--timeout", type=float, metavar="S", help="Seconds; default as configured, 0 for none.")
@click.option("--profile", help="Profile of openenv.toml.")
@click.pass_obj
def command(
    terminal: Terminal,
    ref: str,
    argv: tuple[str, ...],
    interactive: bool,
    env: tuple[str, ...],
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    profile: str | None,
) -> int:
    """Run COMMAND in the sandbox REF: its output as it comes, its exit code as this one's.

    One word runs by /bin/sh -c, several are program and arguments.

    Example: openenv exec local:oe-1a2b 'ps aux | head'
    """
    words = argv[0] if len(argv) == 1 else list(argv)
    given = pairs(env, "--env")
    return interrupt.run(terminal, _run(terminal, ref, words, interactive, given, cwd, user, timeout, profile))


async def _run(
    terminal: Terminal,
    ref: str,
    words: str | list[str],
    interactive: bool,
    env: dict[str, str],
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    profile: str | None,
) -> int:
    def show(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        terminal.raw(stream, data)

    from openenv_sandbox._exec_limits import UNSET

    limit = UNSET if timeout is None else timeout or None
    async with reached(ref, profile) as sandbox:
        source = _input() if interactive else None
        # What is shown as it comes need not be kept; the secrets of the sandbox are the caller's own.
        result = await sandbox.exec(
            words, stdin=source, env=env, cwd=cwd, user=user, on_output=show, max_output=1, redact=False, timeout=limit
        )
    return result.exit_code


async def _input() -> AsyncIterator[bytes]:
    """Standard input as it comes. The read that waits at the end is on a daemon thread and holds nobody up."""
    from openenv_sandbox.lifecycle import daemon_call

    while data := await daemon_call(os.read, sys.stdin.fileno(), 1 << 16):
        yield data
        await asyncio.sleep(0)
