"""``openenv providers``: what could be used."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.registry import ProviderInfo


@click.command("providers", short_help="Show every backend.")
@click.argument("name", required=False)
@click.option("--check", is_flag=True, help="Exit with 3 unless the backend (or, without NAME, any) is ready.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(terminal: Terminal, name: str | None, check: bool, as_json: bool) -> int:
    """Show every backend, or everything about NAME.

    No SDK is imported and the network is not used, so "ready" means that nothing is known to be missing.
    """
    from openenv_sandbox import config, registry
    from openenv_sandbox.cli.terminal import EXIT_UNAVAILABLE

    infos = registry.providers(config.load().options_for)
    if name:
        wanted = registry.canonical(name)
        infos = [info for info in infos if info.name == wanted]
        if not infos:
            registry.get(name)  # raises, with the nearest name
        _one(terminal, infos[0], as_json)
    elif as_json:
        terminal.json([asdict(info) for info in infos])
    else:
        terminal.table(("name", "title", "install", "state", "isolation", "network", "verified"), map(_row, infos))
    return EXIT_UNAVAILABLE if check and not any(info.check.ready for info in infos) else 0


def _row(info: ProviderInfo) -> tuple[Any, ...]:
    capabilities = info.capabilities
    return (
        info.name,
        info.title,
        f"openenv[{info.extra}]" if info.extra else "",
        f"broken: {info.broken}" if info.broken else "ready" if info.check.ready else info.check.reason,
        capabilities.isolation if capabilities else "",
        ",".join(sorted(capabilities.network)) if capabilities else "",
        info.verified.how if info.verified else "",
    )


def _one(terminal: Terminal, info: ProviderInfo, as_json: bool) -> None:
    facts = asdict(info)
    if as_json:
        terminal.json(facts)
        return
    rows = [(key, _plain(value)) for key, value in _flat("", facts)]
    terminal.table(("fact", "value"), rows)


def _flat(prefix: str, facts: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        rows += _flat(f"{prefix}{key}.", value) if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, (frozenset, set)):
        return ", ".join(sorted(map(str, value)))
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value
