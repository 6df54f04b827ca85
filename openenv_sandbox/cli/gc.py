"""``openenv gc``: remove what dead processes left behind."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.reaper import Item, ReapReport, Wish

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@click.command("gc", short_help="Remove what dead processes left.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed and touch nothing.")
@click.option("--run", "run_id", help="Only this run, detached sandboxes included.")
@click.option("--older-than", default="0", metavar="AGE", help="Only what is older: 90, 15m, 2h, 1d.")
@click.option("--provider", "providers", multiple=True, help="Only this backend; repeatable.")
@click.option("--expired-any", is_flag=True, help="Also what other installations let expire.")
@click.option("--images", is_flag=True, help="Also prepared images and snapshots.")
@click.option("--profile", help="Profile of openenv.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_obj
def command(
    terminal: Terminal,
    dry_run: bool,
    run_id: str | None,
    older_than: str,
    providers: tuple[str, ...],
    expired_any: bool,
    images: bool,
    profile: str | None,
    as_json: bool,
) -> int:
    """Remove sandboxes whose owner is dead, on every backend that the journal or the configuration names.

    Sandboxes of living owners, of other users and of other installations are left alone. Exit code 1 when
    something could not be removed or looked at.
    """
    from openenv_sandbox.reaper import Wish

    wish = Wish(dry_run=dry_run, run=run_id, older_than=_seconds(older_than), expired_any=expired_any, images=images)
    report = asyncio.run(_collect(wish, providers, profile))
    if as_json:
        terminal.json(report.to_dict())
    else:
        _tell(terminal, report)
    return 0 if report.clean else 1


async def _collect(wish: Wish, providers: tuple[str, ...], profile: str | None) -> ReapReport:
    from openenv_sandbox import config, reaper, registry
    from openenv_sandbox.journal import Journal

    settings = await asyncio.to_thread(config.load, profile=profile)
    names = [registry.canonical(name) for name in providers]
    for name in names:
        registry.get(name)
    return await reaper.gc(await Journal.open(), settings=settings, providers=names, wish=wish)


def _tell(terminal: Terminal, report: ReapReport) -> None:
    for item in report.removed:
        terminal.data(f"{'would remove' if report.dry_run else 'removed'} {_name(item)}: {item.reason}")
    for name in report.images:
        terminal.data(f"{'would drop' if report.dry_run else 'dropped'} {name}")
    for item in report.kept:
        terminal.say(f"kept {_name(item)}: {item.reason}")
    for item in report.failed:
        terminal.say(f"not removed {_name(item)}: {item.reason}")
    for unseen in report.unseen:
        hint = f"; {unseen.hint}" if unseen.hint else ""
        terminal.say(f"could not look at {unseen.provider} {unseen.scope} ({unseen.count}): {unseen.reason}{hint}")
    if not (report.removed or report.failed or report.unseen):
        terminal.say("nothing to remove")


def _name(item: Item) -> str:
    return f"{item.provider}:{item.id or item.key}"


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not an age: 90, 15m, 2h, 1d", param_hint="--older-than")
    return float(match[1]) * _UNITS[match[2]]
