"""``openenv providers``: what could be used."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.registry import ProviderEntry


@click.command("providers", short_help="Show every backend.")
@click.argument("name", required=False)
@click.option("--check", is_flag=True, help="Exit with 3 unless the backend (or, without NAME, any) is ready.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(terminal: Terminal, name: str | None, check: bool, as_json: bool) -> int:
    """Show every backend, or everything about NAME.

    No SDK is imported and the network is not used, so "ready" means that nothing is known to be missing.
    """
    from openenv_sandbox import registry
    from openenv_sandbox.cli.terminal import EXIT_UNAVAILABLE

    entries = [registry.entry(name)] if name else registry.entries()
    if name:
        _one(terminal, entries[0], as_json)
    else:
        columns = ("name", "title", "install", "state", "isolation", "network", "verified")
        terminal.table(columns, [_row(entry) for entry in entries], as_json=as_json)
    return EXIT_UNAVAILABLE if check and not any(entry.ready for entry in entries) else 0


def _row(entry: ProviderEntry) -> tuple[Any, ...]:
    capabilities = entry.capabilities
    return (
        entry.name,
        entry.title,
        f"openenv[{entry.extra}]" if entry.extra else "",
        "ready" if entry.ready else (f"broken: {entry.broken}" if entry.broken else entry.reason),
        capabilities.isolation if capabilities else "",
        ",".join(sorted(capabilities.network)) if capabilities else "",
        entry.verified.how if entry.verified else "",
    )


def _one(terminal: Terminal, entry: ProviderEntry, as_json: bool) -> None:
    facts = asdict(entry)
    if as_json:
        terminal.json(facts)
        return
    rows = [(key, value) for key, value in facts.items() if key not in ("capabilities", "verified")]
    for group in ("capabilities", "verified"):
        rows += [(f"{group}.{key}", _plain(value)) for key, value in (facts[group] or {}).items()]
    terminal.table(("fact", "value"), rows)


def _plain(value: Any) -> Any:
    return ", ".join(sorted(map(str, value))) if isinstance(value, (frozenset, set, tuple)) else value
