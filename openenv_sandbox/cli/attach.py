"""``openenv attach``: take over a sandbox that was left running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from openenv_sandbox.cli import interrupt
from openenv_sandbox.cli.sandboxes import reached

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal


@click.command("attach", short_help="Take over a sandbox until Ctrl-C.")
@click.argument("ref")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--profile", help="Profile of openenv.toml.")
@click.pass_obj
def command(terminal: Terminal, ref: str, as_json: bool, profile: str | None) -> int:
    """Keep the sandbox REF alive from now on, print its URL and token, and remove it at Ctrl-C.

    For one that `openenv launch --detach`, or a program by `detach()`, has left running.
    """
    return interrupt.run(terminal, _hold(terminal, ref, as_json, profile))


async def _hold(terminal: Terminal, ref: str, as_json: bool, profile: str | None) -> int:
    from openenv_sandbox.cli.launch import hold

    async with reached(ref, profile, own=True) as sandbox:
        endpoint = await sandbox.endpoint()
        return await hold(terminal, sandbox, endpoint, sandbox._token or "", as_json)
