"""``openenv cp``: files and folders into a sandbox and out of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.sandboxes import reached

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal

_REMOTE = re.compile(r"(.+?):(/.*)\Z")


@click.command("cp", short_help="Copy into a sandbox or out of it.")
@click.argument("source")
@click.argument("target")
@click.option("--profile", help="Profile of openenv.toml.")
@click.pass_obj
def command(terminal: Terminal, source: str, target: str, profile: str | None) -> None:
    """Copy a file or folder; the side in a sandbox is written REF:/PATH.

    Example: openenv cp local:oe-1a2b:/app/log.txt .
    """
    inside = [_REMOTE.match(side) for side in (source, target)]
    if (inside[0] is None) == (inside[1] is None):
        raise click.UsageError("one of the two sides is REF:/PATH, with an absolute path")
    interrupt.run(terminal, _copy(source, target, inside[0], inside[1], profile))


async def _copy(
    source: str, target: str, out: re.Match[str] | None, into: re.Match[str] | None, profile: str | None
) -> None:
    if out is not None:
        async with reached(out[1], profile) as sandbox:
            await sandbox.download(out[2], target)
    elif into is not None:
        async with reached(into[1], profile) as sandbox:
            await sandbox.upload(source, into[2])
