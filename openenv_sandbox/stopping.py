"""Stopping sandboxes by name from any process: what ``openenv stop`` does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from openenv_sandbox._reap_report import Item
from openenv_sandbox.errors import CleanupError, ConfigError, OpenEnvError
from openenv_sandbox.options import near
from openenv_sandbox.provider import SandboxRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openenv_sandbox.config import Settings
    from openenv_sandbox.journal import Journal, Row
    from openenv_sandbox.provider import SandboxProvider

DELETE_S = 60.0


def names_of(row: Row) -> tuple[str, ...]:
    """What a row may be called: its ref, its key, its backend's id."""
    refs = (f"{row.provider}:{row.ref_id}", row.ref_id) if row.ref_id else (f"{row.provider}:{row.key}",)
    return (*refs, row.key)


def choose(rows: Sequence[Row], names: Iterable[str], run: str | None) -> list[Row]:
    """The rows meant by ``names`` and ``run``. A unique beginning of an id or key is enough.

    Raises:
        ConfigError: A name fits none or several.
    """
    chosen = [row for row in rows if run is not None and row.run == run]
    if run is not None and not chosen:
        raise ConfigError(f"the journal knows no run {run!r}", hint="openenv ps shows what there is")
    for name in names:
        exact = [row for row in rows if name in names_of(row)]
        fits = exact or [row for row in rows if len(name) >= 4 and any(n.startswith(name) for n in names_of(row))]
        if not fits:
            known = [known for row in rows for known in names_of(row)]
            raise ConfigError(
                f"the journal knows no sandbox {name!r}{near(name, known) if known else ''}",
                hint="openenv ps shows what there is; `openenv gc` finds what the journal has lost",
            )
        if len(fits) > 1:
            raise ConfigError(f"{name!r} fits {len(fits)} sandboxes: {', '.join(names_of(row)[0] for row in fits)}")
        if fits[0] not in chosen:
            chosen.append(fits[0])
    return chosen


async def stop(rows: Iterable[Row], journal: Journal, settings: Settings | None = None) -> list[Item]:
    """Delete the sandboxes of ``rows`` and close the rows. Returns one item each; a failure has a reason."""
    return [item for group in await asyncio.gather(*(_one(row, journal, settings) for row in rows)) for item in group]


async def _one(row: Row, journal: Journal, settings: Settings | None) -> list[Item]:
    from openenv_sandbox import registry

    try:
        options = settings.options_for(row.provider) if settings is not None else None
        lease = await registry.acquire(row.provider, options)
    except OpenEnvError as error:
        return [_item(row, str(error))]
    try:
        await asyncio.wait_for(_delete(lease.provider, row, journal), DELETE_S)
    except (OpenEnvError, asyncio.TimeoutError) as error:
        await journal.pending_delete(row.key)
        return [_item(row, str(error) or f"the delete did not end within {DELETE_S:g} s")]
    finally:
        await lease.release()
    return [_item(row, "")]


async def _delete(provider: SandboxProvider, row: Row, journal: Journal) -> None:
    if provider.scope() != row.scope:
        raise CleanupError(
            f"{row.provider} is now set up for {provider.scope()!r}, the sandbox is in {row.scope!r}",
            provider=row.provider,
            hint="run the command with the login or endpoint that made it",
        )
    refs = [SandboxRef(row.provider, row.scope, row.ref_id, row.key)] if row.ref_id else await provider.find(row.key)
    if not refs and row.state == "intent":
        raise CleanupError(
            "its creation has not been seen to end, and the backend does not know it yet",
            provider=row.provider,
            hint="openenv gc removes it when it appears",
        )
    for ref in refs:
        await provider.delete(await journal.full_ref(ref))
    await journal.close(row.key)


def _item(row: Row, reason: str) -> Item:
    return Item(row.provider, row.scope, row.key, row.ref_id, row.run, reason)
