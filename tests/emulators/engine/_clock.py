"""The engine's time: real time and an offset that tests move."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._engine import Engine


class Clock:
    """Unix time plus an offset.

    Timers of boxes and those of `at` fire when `advance` overtakes them, or when real time does (looked at ten times a
    second).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offset = 0.0
        self._lock = threading.Lock()
        self._ticking = asyncio.Lock()
        self._timers: list[tuple[float, Callable[[], Awaitable[object] | None]]] = []

    def now(self) -> float:
        """Unix time in seconds."""
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        """Move on; returns when every timer that became due has run. Not on the engine's own loop: see `shift`."""
        self._engine.call(self.shift(seconds))

    async def shift(self, seconds: float) -> None:
        """`advance` for the face, on the engine's loop."""
        with self._lock:
            self._offset += seconds
        await self.tick()

    def at(self, when: float, call: Callable[[], Awaitable[object] | None]) -> None:
        """Call ``call`` on the engine's loop once ``when`` is reached; on that loop only."""
        self._timers.append((when, call))

    async def tick(self) -> None:
        """Fire what is due; returns when it has run, also what another call has begun."""
        async with self._ticking:
            await self._fire()

    async def _fire(self) -> None:
        now = self.now()
        due = [call for when, call in self._timers if when <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for call in due:
            result = call()
            if result is not None:
                await result
        await self._engine.end_due(now)

    async def run(self) -> None:
        """Follow real time, as long as the engine lives."""
        while True:
            await asyncio.sleep(0.1)
            await self.tick()
