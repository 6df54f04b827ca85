"""The one policy by which requests to a backend are repeated, and the one way a create is."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from openenv_sandbox._slots import Gate, Held, Slots, gate
from openenv_sandbox._throttle import grpc_code, parse_retry_after, retry_after, status_of, throttled
from openenv_sandbox.errors import OpenEnvError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from openenv_sandbox.provider import Prepared, Sandbox, SandboxProvider, SandboxRef
    from openenv_sandbox.spec import SandboxSpec

__all__ = [
    "DEFAULT",
    "NEVER",
    "Gate",
    "Held",
    "Policy",
    "Slots",
    "call",
    "create",
    "gate",
    "grpc_code",
    "parse_retry_after",
    "retry_after",
    "status_of",
    "throttled",
]

T = TypeVar("T")
_log = logging.getLogger("openenv.launch")


@dataclass(frozen=True)
class Policy:
    """How long to wait before trying again: exponential with full jitter, or what the backend asked for.

    Attributes:
        first: Upper bound of the first wait, in seconds.
        factor: Growth of that bound.
        longest: Where it stops growing, in seconds. What the backend asks for is not bounded by it.
        attempts: Tries in all; None for as many as fit the deadline.
        clock: Monotonic seconds.
        sleep: Waits.
        rng: A number from [0, 1).
    """

    first: float = 0.5
    factor: float = 2.0
    longest: float = 20.0
    attempts: int | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: Callable[[], float] = random.random

    def wait(self, attempt: int, error: OpenEnvError | None = None) -> float:
        """Seconds to wait after the failed try number ``attempt``, counted from 1."""
        bound = min(self.longest, self.first * self.factor ** min(attempt - 1, 30))
        asked = error.retry_after if isinstance(error, RateLimited) else None
        # Spread behind the asked time, never before it: many clients were told the same number.
        return bound * self.rng() if asked is None else asked + min(bound, asked) * self.rng() * 0.25

    def over(self, attempt: int) -> bool:
        """Whether try number ``attempt`` was the last."""
        return self.attempts is not None and attempt >= self.attempts


DEFAULT = Policy()
NEVER = Policy(attempts=1)
"""For SDKs that repeat by themselves: two layers of retries multiply."""


async def call(
    fn: Callable[[], Awaitable[T]],
    *,
    deadline: float,
    policy: Policy = DEFAULT,
    dedupes: bool = True,
    provider: str = "",
) -> T:
    """Call ``fn`` until it succeeds, fails for good, or the time is over.

    Only errors that say ``retryable`` are repeated; one whose outcome is unknown only if the call ``dedupes``.

    Args:
        fn: The request.
        deadline: Seconds for everything, waits included. A wait that would not fit is not begun.
        policy: When to try again.
        dedupes: Whether doing it twice is as good as once.
        provider: Name of the backend, for exceptions of its SDK that say to slow down.

    Raises:
        OpenEnvError: The last error.
    """
    end = policy.clock() + deadline
    attempt = 0
    while True:
        attempt += 1
        try:
            return await fn()
        except Exception as raised:
            error = _ours(raised, provider)
            wait = policy.wait(attempt, error)
            repeat = error.retryable and (error.outcome == "failed" or dedupes)
            if not repeat or policy.over(attempt) or policy.clock() + wait >= end:
                raise error from (None if error is raised else raised)
        _log.debug("%s: trying again in %.1f s: %s", provider or "request", wait, error.message)
        await policy.sleep(wait)


async def create(
    provider: SandboxProvider,
    prepared: Prepared,
    spec: SandboxSpec,
    *,
    key: str,
    deadline: float,
    policy: Policy = DEFAULT,
    turn: Gate | None = None,
) -> Sandbox:
    """Create one sandbox; repeated only where that cannot give two.

    A create whose outcome is unknown is looked up by its key first. What is found is adopted: by creating again with
    the same key where the backend takes that as the same sandbox, else by attaching, with any second one deleted.
    Nothing found and no such guarantee: the error stands, and the journal's row keeps the key.

    Args:
        provider: The backend.
        prepared: What to boot.
        spec: Complete.
        key: From the journal.
        deadline: Seconds for everything, waiting for a turn included.
        policy: When to try again.
        turn: Bounds how many start at once; None for no bound.

    Raises:
        CreateTimeout: The turn did not come.
        OpenEnvError: The last error of the backend.
    """
    end = policy.clock() + deadline
    attempt = 0
    while True:
        attempt += 1
        error = None
        try:
            if turn is None:
                return await provider.create(prepared, spec, key=key)
            async with turn.starting(timeout=end - policy.clock()):
                await _paused(turn, provider, end, policy)
                return await provider.create(prepared, spec, key=key)
        except Exception as raised:
            error = _ours(raised, provider.name)
            if error is not raised:
                error.__cause__ = raised
        wait = policy.wait(attempt, error)
        if turn is not None and isinstance(error, RateLimited):
            turn.pause(wait)
        again = error.retryable
        if error.outcome == "unknown":
            found = await _look_up(provider, key, error, end, policy)
            if found and not provider.capabilities.dedupes_key:
                return await _adopt(provider, found, error)
            again = provider.capabilities.dedupes_key
        if not again or policy.over(attempt) or policy.clock() + wait >= end:
            raise error
        _log.info("%s: creating %s again in %.1f s: %s", provider.name, key, wait, error.message)
        await policy.sleep(wait)


async def _paused(turn: Gate, provider: SandboxProvider, end: float, policy: Policy) -> None:
    while (left := turn.pause_left) > 0:
        # Spread: all who waited would otherwise ask in the same instant.
        left += policy.first * policy.rng()
        if policy.clock() + left >= end:
            raise RateLimited(
                f"{provider.title} asked to slow down for {left:.0f} s, longer than is left to create a sandbox",
                provider=provider.name,
                retry_after=left,
                hint="start fewer at once or raise timeouts.create",
            )
        await policy.sleep(left)


async def _look_up(
    provider: SandboxProvider, key: str, error: OpenEnvError, end: float, policy: Policy
) -> Sequence[SandboxRef]:
    if provider.capabilities.findable == "none":
        return ()
    try:
        found = await call(
            lambda: provider.find(key), deadline=max(0.0, end - policy.clock()), policy=policy, provider=provider.name
        )
    except Exception as failure:
        _log.warning("%s: could not look for %s after a lost reply: %s", provider.name, key, failure)
        raise error from None
    return [ref for ref in found if ref.key == key]


async def _adopt(provider: SandboxProvider, found: Sequence[SandboxRef], error: OpenEnvError) -> Sandbox:
    if not provider.capabilities.attach:
        raise error
    try:
        for second in found[1:]:
            await provider.delete(second)
        return await provider.attach(found[0])
    except Exception as failure:
        raise error from failure


def _ours(raised: Exception, provider: str) -> OpenEnvError:
    if isinstance(raised, OpenEnvError):
        return raised
    error = throttled(raised, provider=provider)
    if error is None:
        raise raised
    return error
