"""``openenv stop``: remove sandboxes by name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.reaper import Item


@click.command("stop", short_help="Stop sandboxes.")
@click.argument("names", nargs=-1, metavar="REF…")
@click.option("--run", "run_id", help="Every sandbox of one run.")
@click.option("--all", "everything", is_flag=True, help="Every sandbox in the journal, also of living owners.")
@click.option("--profile", help="Profile of openenv.toml.")
@click.pass_obj
def command(
    terminal: Terminal, names: tuple[str, ...], run_id: str | None, everything: bool, profile: str | None
) -> int:
    """Remove sandboxes. REF is what `openenv ps` shows, a key, or a unique beginning of either."""
    if not (names or run_id or everything):
        raise click.UsageError("say which: REF, --run or --all")
    failed = 0
    for item in asyncio.run(_stop(names, run_id, everything, profile)):
        name = f"{item.provider}:{item.id or item.key}"
        if item.reason:
            failed += 1
            terminal.say(f"not removed {name}: {item.reason}")
        else:
            terminal.data(name)
    return 1 if failed else 0


async def _stop(names: tuple[str, ...], run_id: str | None, everything: bool, profile: str | None) -> list[Item]:
    from openenv_sandbox import config, stopping
    from openenv_sandbox.journal import Journal

    settings = await asyncio.to_thread(config.load, profile=profile)
    journal = await Journal.open()
    rows = await journal.rows()
    chosen = rows if everything else stopping.choose(rows, names, run_id)
    return await stopping.stop(chosen, journal, settings)
