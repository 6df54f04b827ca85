"""Slots of a server: reserved before anything is built, so that the cap holds whatever comes at once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from openenv_sandbox.errors import CapacityError
from openenv_sandbox.server.worker import deliver
from openenv_sandbox.wire import messages


class Slots:
    """Counts sessions, those that wait for a slot, and steps whose client is gone.

    Works from several event loops at once, as test clients use it.

    Args:
        capacity: Most slots taken at a time.
        max_queued: How many may wait; more are refused at once.
        queue_timeout: Seconds they wait.
    """

    CLOSING_GRACE = 5.0
    """Seconds a newcomer waits for a slot whose environment is being closed just now."""

    def __init__(self, capacity: int, *, max_queued: int = 0, queue_timeout: float = 60.0) -> None:
        self.capacity = capacity
        self.taken = 0
        self.abandoned = 0
        self.closing = 0
        self._max_queued = max_queued
        self._queue_timeout = queue_timeout
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def reserve(self) -> Seat:
        """Take a slot, or wait for one in the queue.

        Raises:
            CapacityError: There is none, and the queue is full or took too long.
        """
        with self._lock:
            if self.taken < self.capacity and not self._waiting:
                self.taken += 1
                return Seat(self)
            ahead = len(self._waiting)
            if ahead < self._max_queued:
                timeout = self._queue_timeout
            elif ahead < self._max_queued + self.closing:
                timeout = self.CLOSING_GRACE
            else:
                raise self._full()
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            entry = (loop, waiter)
            self._waiting.append(entry)
        try:
            await asyncio.wait_for(asyncio.shield(waiter), timeout)
        except BaseException as error:
            with self._lock:
                queued = entry in self._waiting
                if queued:
                    self._waiting.remove(entry)
            if not queued:  # the slot was handed over in the same moment
                self.release()
            if isinstance(error, asyncio.TimeoutError):
                raise self._full() from None
            raise
        return Seat(self)

    def release(self) -> None:
        """Give a slot back; the first one waiting has it."""
        with self._lock:
            while self._waiting:
                loop, waiter = self._waiting.popleft()
                if not loop.is_closed() and not waiter.done():
                    deliver(loop, _grant, waiter)
                    return
            self.taken -= 1

    def abandon(self) -> bool:
        """Free the slot of a step that still runs though its client is gone; False when the bound forbids it."""
        with self._lock:
            free = self.abandoned < self.capacity
            if free:
                self.abandoned += 1
        if free:
            self.release()
        return free

    def recover(self) -> None:
        """A step that had been abandoned has returned."""
        with self._lock:
            self.abandoned -= 1

    def _full(self) -> CapacityError:
        text = f"Server at capacity: {self.taken}/{self.capacity} sessions active. Cannot accept new connections."
        extra = {"active_sessions": self.taken, "max_sessions": self.capacity}
        if self.abandoned:
            text += f" {self.abandoned} abandoned steps whose clients are gone are still running."
            extra["abandoned_steps"] = self.abandoned
        return CapacityError(
            text,
            code=messages.CAPACITY_REACHED,
            data=extra,
            hint="Raise max_concurrent_envs, or let connections wait with ConcurrencyConfig(max_queued=...).",
        )


class Seat:
    """One slot, from its reservation until it is free again; every method may be called at any time."""

    __slots__ = ("_abandoned", "_closing", "_held", "_slots")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held = True
        self._abandoned = self._closing = False

    def abandon(self) -> None:
        """What holds the slot does not end though nobody waits for it: free the slot, as far as the bound allows."""
        self._settle()
        if self._held and self._slots.abandon():
            self._held, self._abandoned = False, True

    def closing(self) -> None:
        """The environment is being closed; a newcomer may wait for the slot a moment."""
        if self._held and not self._closing:
            self._closing = True
            self._slots.closing += 1

    def free(self) -> None:
        """Nothing holds the slot any more."""
        self._settle()
        if self._held:
            self._held = False
            self._slots.release()
        elif self._abandoned:
            self._abandoned = False
            self._slots.recover()

    def _settle(self) -> None:
        if self._closing:
            self._closing = False
            self._slots.closing -= 1


def _grant(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
