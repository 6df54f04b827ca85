"""How many sandboxes of one backend live and how many start at once, counted over all loops of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openenv_sandbox.errors import CreateTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

STARTING = 16
"""Creates of one backend at once. Daemons and gateways fail under more, and none gets faster."""


@dataclass
class _Waiter:
    loop: asyncio.AbstractEventLoop
    turn: asyncio.Future[None]
    count: int


class Slots:
    """A counted resource, first come first served, usable from several loops and threads.

    Args:
        limit: How many there are; None for no bound.
    """

    def __init__(self, limit: int | None) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._used = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def limit(self) -> int | None:
        """How many there are."""
        return self._limit

    @property
    def in_use(self) -> int:
        """How many are taken."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._waiting)

    def set_limit(self, limit: int | None) -> None:
        """Change the bound; those who hold more than it keep what they have."""
        with self._lock:
            self._limit = limit
            self._pass_on()

    async def acquire(self, count: int = 1, *, timeout: float) -> Held:
        """Take ``count`` at once, all or none, so that two who each need several never wait for each other.

        Args:
            count: How many.
            timeout: Seconds to wait.

        Raises:
            CreateTimeout: None came free in time, or ``count`` is more than there are. Nothing was asked for.
        """
        if self._limit is not None and count > self._limit:
            raise CreateTimeout(f"{count} places are wanted at once, the limit is {self._limit}", outcome="failed")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop, loop.create_future(), count)
        with self._lock:
            self._waiting.append(waiter)
            self._pass_on(loop)
        try:
            done, _ = await asyncio.wait({waiter.turn}, timeout=max(0.0, timeout))
        except BaseException:
            self._leave(waiter, wanted=False)
            raise
        if not done and self._leave(waiter, wanted=True):
            raise CreateTimeout(
                f"no place came free within {timeout:g} s: {self._used} of {self._limit} in use",
                outcome="failed",
                retryable=True,
                hint="stop sandboxes, raise the limit, or raise timeouts.create to wait longer",
            )
        return Held(self, count)

    def _leave(self, waiter: _Waiter, *, wanted: bool) -> bool:
        """Leave the queue; False when the turn came in the same moment. It is passed on unless still ``wanted``."""
        with self._lock:
            queued = waiter in self._waiting
            if queued:
                self._waiting.remove(waiter)
            elif not wanted:
                self._used -= waiter.count
            self._pass_on()  # it may have stood before a smaller wish
            return queued

    def _release(self, count: int) -> None:
        with self._lock:
            self._used -= count
            self._pass_on()

    def _pass_on(self, here: asyncio.AbstractEventLoop | None = None) -> None:
        while self._waiting:
            first = self._waiting[0]
            if first.loop.is_closed():
                self._waiting.popleft()
                continue
            if self._limit is not None and self._used + first.count > self._limit:
                return
            self._waiting.popleft()
            self._used += first.count
            if first.loop is here:
                _wake(first.turn)
            else:
                try:
                    first.loop.call_soon_threadsafe(_wake, first.turn)
                except RuntimeError:
                    self._used -= first.count


class Held:
    """Places that were taken; `release` gives them back, from any thread, once."""

    def __init__(self, slots: Slots, count: int) -> None:
        self._slots, self._count = slots, count

    def release(self) -> None:
        """Give them back."""
        count, self._count = self._count, 0
        if count:
            self._slots._release(count)


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class Gate:
    """What one backend and scope can take: sandboxes that live, creates at once, and a pause that it asked for.

    Args:
        live: Sandboxes at once; None where the backend does not document a limit.
        starting: Creates at once.
        clock: Monotonic seconds.
    """

    def __init__(
        self, live: int | None = None, starting: int = STARTING, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.live = Slots(live)
        self.starts = Slots(starting)
        self._clock = clock
        self._resume_at = 0.0

    @property
    def pause_left(self) -> float:
        """Seconds until the backend may be asked again; 0 when it may be asked now."""
        return max(0.0, self._resume_at - self._clock())

    def pause(self, seconds: float) -> None:
        """Nobody starts for ``seconds``: one refusal slows everybody, else each waiter would collect its own."""
        self._resume_at = max(self._resume_at, self._clock() + seconds)

    async def slot(self, *, timeout: float, count: int = 1) -> Held:
        """Take places among the living; release them when the delete is certain.

        Raises:
            CreateTimeout: None came free in time; says how many are in use.
        """
        return await self.live.acquire(count, timeout=timeout)

    @contextlib.asynccontextmanager
    async def starting(self, *, timeout: float) -> AsyncIterator[None]:
        """Be one of those that start, for the time of a block.

        Raises:
            CreateTimeout: The turn did not come in time.
        """
        held = await self.starts.acquire(timeout=timeout)
        try:
            yield
        finally:
            held.release()


_gates: dict[tuple[str, str], Gate] = {}
_gates_lock = threading.Lock()


def gate(provider: str, scope: str, *, live: int | None = None) -> Gate:
    """The process's gate of one backend and scope; ``live`` counts only where it is made."""
    with _gates_lock:
        found = _gates.get((provider, scope))
        if found is None:
            found = _gates[provider, scope] = Gate(live)
        return found


def _after_fork_in_child() -> None:
    """Whoever holds a place, or the lock, stayed with the parent: here nobody would ever give it back."""
    global _gates_lock
    _gates_lock = threading.Lock()
    _gates.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
