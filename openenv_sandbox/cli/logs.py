"""``openenv logs``: what a sandbox's server wrote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.sandboxes import reached

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.running import RunningSandbox

LOOK_S = 1.0


@click.command("logs", short_help="Show what a server wrote.")
@click.argument("ref")
@click.option("-f", "--follow", is_flag=True, help="Go on until the server ends.")
@click.option("-n", "--tail", type=click.IntRange(0), help="Only so many last lines.")
@click.option("--profile", help="Profile of openenv.toml.")
@click.pass_obj
def command(terminal: Terminal, ref: str, follow: bool, tail: int | None, profile: str | None) -> None:
    """Show what the server in the sandbox REF wrote so far."""
    interrupt.run(terminal, _show(terminal, ref, follow, tail, profile))


async def _show(terminal: Terminal, ref: str, follow: bool, tail: int | None, profile: str | None) -> None:
    async with reached(ref, profile) as sandbox:
        shown = await sandbox.logs(tail=tail)
        terminal.raw("stdout", shown)
        if follow:
            await _follow(terminal, sandbox, await sandbox.logs() if tail is not None else shown)


async def _follow(terminal: Terminal, sandbox: RunningSandbox, seen: bytes) -> None:
    ended = asyncio.ensure_future(sandbox.wait_exit())
    try:
        last = False
        while not last:
            await asyncio.wait([ended], timeout=LOOK_S)
            last = ended.done()
            now = await sandbox.logs()
            # A backend that keeps only the end of a log has dropped the beginning of what was seen.
            terminal.raw("stdout", now[len(seen) :] if now.startswith(seen) else _beyond(seen, now))
            seen = now
    finally:
        ended.cancel()


def _beyond(seen: bytes, now: bytes) -> bytes:
    """What follows, in ``now``, on the last of ``seen``; all of it where they do not meet."""
    end = seen[-4096:]
    at = now.rfind(end) if end else -1
    return now if at < 0 else now[at + len(end) :]
