"""Dockerfiles, built by really running them in a box."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._engine import Engine
    from ._images import EmuImage


class BuildFailed(Exception):
    """A step failed; ``log`` is what was said until then."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


async def build(engine: Engine, dockerfile: str, context: Any, *, log: Any, ref: str | None) -> EmuImage:
    raise BuildFailed("soon")
