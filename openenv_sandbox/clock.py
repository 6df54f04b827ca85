"""What timers follow; tests set another clock. A provider that compares times takes this one too."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Protocol


class Clock(Protocol):
    """What timers follow."""

    def time(self) -> float:
        """Unix time in seconds."""

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""


class SystemClock:
    """The machine's."""

    def time(self) -> float:
        """Unix time in seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""
        await asyncio.sleep(seconds)


_SYSTEM = SystemClock()
CLOCK: contextvars.ContextVar[Clock] = contextvars.ContextVar("openenv_clock", default=_SYSTEM)
"""The clock of leases and idle timers; tests set another."""
