"""Sandboxes by the names that `openenv ps` shows."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openenv_sandbox.running import RunningSandbox


@asynccontextmanager
async def reached(name: str, profile: str | None, *, own: bool = False) -> AsyncIterator[RunningSandbox]:
    """The sandbox of that name, through the journal of this machine.

    Args:
        name: What `openenv ps` shows, a key, or a unique beginning of either.
        profile: Profile of openenv.toml.
        own: Answer for its end; else it is only used.

    Raises:
        ConfigError: The name fits none or several.
        SandboxGone: It does not exist any more.
    """
    from openenv_sandbox import attach, stopping
    from openenv_sandbox.errors import SandboxGone
    from openenv_sandbox.journal import Journal
    from openenv_sandbox.provider import SandboxRef

    journal = await Journal.open()
    (row,) = stopping.choose(await journal.rows(), [name], None)
    await asyncio.shield(journal.aclose())
    if not row.ref_id:
        raise SandboxGone(f"{row.provider}:{row.key} has not been created yet, or its creation failed")
    ref = SandboxRef(row.provider, row.scope, row.ref_id, row.key)
    async with attach(ref, profile=profile, own=own) as sandbox:
        yield sandbox
