"""``openenv ps``: the sandboxes that the journal of this machine knows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from openenv_sandbox.cli.progress import short

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.journal import Row

WATCH_S = 2.0
COLUMNS = ("ref", "state", "owner", "age", "expires", "run", "note", "key", "scope")


@click.command("ps", short_help="Show sandboxes.")
@click.option("--provider", help="Only those of one backend.")
@click.option("--run", "run_id", help="Only those of one run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--scope", "with_scope", is_flag=True, help="Show what the ids belong to, and the keys.")
@click.option("--watch", is_flag=True, help="Show it anew every two seconds until Ctrl-C.")
@click.pass_obj
def command(
    terminal: Terminal, provider: str | None, run_id: str | None, as_json: bool, with_scope: bool, watch: bool
) -> None:
    """Show every sandbox that openenv processes of this user made on any backend and have not removed.

    The owner is alive while its process lives; `openenv gc` removes what dead owners left.
    """
    while True:
        rows = asyncio.run(_rows(provider, run_id))
        shown = COLUMNS if as_json or with_scope else COLUMNS[:7]
        if watch:
            terminal.clear()
        terminal.table(shown, [_cells(row, as_json)[: len(shown)] for row in rows], as_json=as_json)
        if not watch:
            return
        time.sleep(WATCH_S)


async def _rows(provider: str | None, run_id: str | None) -> list[Row]:
    from openenv_sandbox import registry
    from openenv_sandbox.journal import Journal

    journal = await Journal.open()
    name = registry.canonical(provider) if provider else None
    if name and name not in registry.names():
        registry.get(name)  # raises, with the nearest
    return [row for row in await journal.rows(provider=name) if run_id in (None, row.run)]


def _cells(row: Row, as_json: bool) -> tuple[Any, ...]:
    now = time.time()
    ref = f"{row.provider}:{row.ref_id}" if row.ref_id else f"{row.provider}:{row.key}"
    owner = "alive" if row.alive else "dead"
    if as_json:
        return (ref, row.state, owner, now - row.created_at, row.expires_at, row.run, row.note, row.key, row.scope)
    expires = "" if row.expires_at is None else _span(row.expires_at - now)
    age = _span(now - row.created_at)
    return (short(ref), row.state, owner, age, expires, row.run, row.note, row.key, row.scope)


def _span(seconds: float) -> str:
    """``90`` as ``1m30s``; what is past as ``-1m30s``."""
    sign, left = ("-" if seconds < 0 else ""), int(abs(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = [f"{value}{unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (left, "s")) if value]
    return sign + ("".join(parts[:2]) or "0s")
