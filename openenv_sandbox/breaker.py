"""Stops creating sandboxes that only die: a loop that replaces what fails would otherwise spend without end."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from openenv_sandbox.errors import CircuitOpen

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 5
WINDOW_S = 60.0
YOUNG_S = 10.0
LONGEST_S = 960.0


class Breaker:
    """Counts the sandboxes of one provider that died before they were ready, or within 10 s of that.

    Five in 60 s open it. After a minute one create is let through: if that sandbox dies young too, it opens for twice
    as long (up to 16 minutes); if it survives, everything is forgotten.

    Args:
        provider: Name of the backend.
        limit: Deaths that open it.
        window: Within so many seconds.
        young: A death so many seconds after ready still counts.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        provider: str,
        *,
        limit: int = LIMIT,
        window: float = WINDOW_S,
        young: float = YOUNG_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider, self.limit, self.window, self.young = provider, limit, window, young
        self._clock = clock
        self._lock = threading.Lock()
        self._deaths: deque[tuple[float, str]] = deque(maxlen=1000)
        self._closed_until = 0.0
        self._pause = window
        self._open = False
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether creation is suspended."""
        return self._open

    def check(self) -> None:
        """Ask before a create.

        Raises:
            CircuitOpen: Too many died; says how many, why, and when one will be let through.
        """
        with self._lock:
            now = self._clock()
            if not self._open:
                return
            if now >= self._closed_until:
                # One is let through; should nobody ever tell how it went, the next one after another window.
                self._closed_until, self._probing = now + self.window, True
                return
            left = self._closed_until - now
            reasons = list(dict.fromkeys(reason for _, reason in self._deaths))
            count = len(self._deaths)
        raise CircuitOpen(
            f"creating sandboxes is suspended: {count} died young within {self.window:g} s ({'; '.join(reasons[:3])})",
            provider=self.provider,
            reasons=reasons,
            hint=f"run one by hand and read its log; one create is let through in {left:.0f} s",
        )

    def died(self, reason: str, *, after_ready: float | None = None) -> None:
        """A sandbox died that nobody had asked to.

        Args:
            reason: In a few words; secrets are masked.
            after_ready: Seconds since it was ready; None when it never was.
        """
        if after_ready is not None and after_ready > self.young:
            self.survived()
            return
        from openenv_sandbox.redact import clean, mask

        with self._lock:
            now = self._clock()
            self._deaths.append((now, clean(mask(reason)).split("\n")[0][:200]))
            if self._open:
                if self._probing:  # not one of those that were under way when it opened
                    self._pause, self._probing = min(LONGEST_S, self._pause * 2), False
                    self._closed_until = now + self._pause
                return
            while self._deaths[0][0] <= now - self.window:
                self._deaths.popleft()
            if len(self._deaths) >= self.limit:
                self._open, self._pause, self._probing = True, self.window, False
                self._closed_until = now + self._pause

    def survived(self) -> None:
        """A sandbox has been ready for longer than ``young`` seconds."""
        with self._lock:
            if self._probing:  # one made before it opened proves nothing
                self._open = self._probing = False
                self._deaths.clear()


_breakers: dict[str, Breaker] = {}
_guard = threading.Lock()


def breaker(provider: str) -> Breaker:
    """The process's breaker of one provider."""
    with _guard:
        return _breakers.setdefault(provider, Breaker(provider))
