"""Keeping a sandbox alive exactly as long as somebody uses it."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from openenv_sandbox.clock import CLOCK
from openenv_sandbox.errors import CapabilityError, SandboxGone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import Sandbox
    from openenv_sandbox.spec import Timeouts

P = ParamSpec("P")
T = TypeVar("T")

LEASE_S = 600.0
"""How long an extendable sandbox lives on when its owner is gone, in seconds."""

IDLE_S = 60.0
"""How often the idle timer of a backend is reset that does not say how often, in seconds."""

_log = logging.getLogger("openenv.launch")


def lease_s(timeouts: Timeouts, caps: Capabilities) -> float:
    """The lifetime a sandbox is created with, in seconds.

    Where the backend can extend, a short lease that is renewed, unless the user said how long it shall live; else the
    whole use from the start.
    """
    whole = timeouts.effective_lifetime
    if caps.lifetime != "server-extendable" or timeouts.lifetime is not None:
        return whole
    return min(whole, max(LEASE_S, timeouts.ready + timeouts.create))


class KeepAlive:
    """Renews one sandbox's lease, or feeds its idle timer, until stopped.

    Args:
        sandbox: Which.
        caps: How its backend ends sandboxes.
        lease: The lifetime it was created with, in seconds.
        renew: False where the user fixed the lifetime.
        idle: Seconds without use after which ``on_idle`` is called; None for never.
        on_idle: Lets the sandbox go.
        extended: Told each new end.
        end: Seconds from now after which ``on_end`` is called, where the backend ends nothing; None for never.
        on_end: Deletes the sandbox.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        caps: Capabilities,
        *,
        lease: float,
        renew: bool,
        idle: float | None,
        on_idle: Callable[[], Awaitable[None]],
        extended: Callable[[float], Awaitable[None]],
        end: float | None = None,
        on_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.clock = CLOCK.get()
        self.used_at = self.clock.time()
        self._busy = 0
        self._sandbox, self._lease, self._idle = sandbox, lease, idle
        self._on_idle, self._extended = on_idle, extended
        self._renews = caps.lifetime == "server-extendable" and renew
        self._feeds = caps.keep_alive_s or (IDLE_S if caps.lifetime == "idle-only" else None)
        self._end, self._on_end = (end if caps.lifetime == "none" else None), on_end
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        from openenv_sandbox.lifecycle import keep

        if self._renews:
            self._tasks.append(keep(self._every(self._lease / 3, self._renew), name="openenv-lease"))
        if self._feeds is not None:
            self._tasks.append(keep(self._every(self._feeds, self._sandbox.keep_alive), name="openenv-keep-alive"))
        if self._idle is not None:
            self._tasks.append(keep(self._watch_idle(self._idle), name="openenv-idle"))
        if self._end is not None and self._on_end is not None:
            self._tasks.append(keep(self._at_end(self.clock.time() + self._end, self._on_end), name="openenv-expiry"))

    def stop(self) -> None:
        """End: from now on nothing is renewed."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task.get_loop().is_closed():
                continue
            if task is not _current():
                task.cancel()

    def counts(self, fn: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """``fn``, whose calls count as use from their begin to their end; itself where nothing asks for that."""
        if self._idle is None:
            return fn

        @functools.wraps(fn)
        async def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            self._busy += 1
            try:
                return await fn(*args, **kwargs)
            finally:
                self._busy -= 1
                self.used_at = self.clock.time()

        return counted

    async def _every(self, seconds: float, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await act()
            except (SandboxGone, CapabilityError) as error:
                _log.debug("no longer kept alive: %s", error.message)
                return
            except Exception as error:
                _log.warning("could not keep %s alive, trying again: %s", self._sandbox.ref, error)
                await self.clock.sleep(seconds / 4)
                continue
            await self.clock.sleep(seconds)

    async def _renew(self) -> None:
        ends = self._sandbox.info.expires_at
        # Many backends set exactly what they are told: a longer lifetime somebody asked for must not shrink.
        if ends is not None and ends >= self.clock.time() + self._lease:
            return
        await self._extended(await self._sandbox.extend(self._lease))

    async def _at_end(self, end: float, act: Callable[[], Awaitable[None]]) -> None:
        while (left := end - self.clock.time()) > 0:
            await self.clock.sleep(left)
        try:
            await act()
        except Exception as error:
            _log.warning("could not delete %s at its end: %s", self._sandbox.ref, error)

    async def _watch_idle(self, idle: float) -> None:
        while (left := self.used_at + idle - self.clock.time()) > 0 or self._busy:
            await self.clock.sleep(left if left > 0 else idle)
        await self._on_idle()


def _current() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
