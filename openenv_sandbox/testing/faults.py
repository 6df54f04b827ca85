"""Faults a test injects into the fake cloud, and the clock it moves.

Each rule counts what it hit, so that a test can assert that its fault really happened.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

When = Literal["before", "after"]


class FakeApiError(Exception):
    """What the fake cloud answers instead of a result; ``status`` speaks HTTP, 0 is a reply that never comes."""

    def __init__(self, status: int, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or f"status {status}")
        self.status, self.message, self.retry_after = status, message or f"status {status}", retry_after


@dataclass
class Rule:
    """One fault.

    Attributes:
        op: The call it concerns: create, find, list, delete, info, endpoint, exec, prepare, extend, keep_alive, …
        when: Before the cloud acts, or after it has acted and before it answers.
        status: Answer this error instead; 0 cuts the connection without an answer, None answers normally.
        retry_after: Seconds, told with the error.
        delay: Seconds of real time to wait.
        hang: Wait until `release` is called.
        late: With ``create``: seconds of the cloud's clock for which the sandbox shows in no look-up.
        half: With ``list``: answer only this many sandboxes, then break.
        die: With ``create``: the server ends by itself, e.g. ``{"after_s": 1, "code": 17}`` or ``{"after_steps": 2}``.
        times: How often it applies; None for always.
        skip: How many matching calls pass first.
        match: Further condition on the arguments of the call.
        hits: How often it has applied.
    """

    op: str
    when: When = "before"
    status: int | None = None
    message: str = ""
    retry_after: float | None = None
    delay: float = 0.0
    hang: bool = False
    late: float = 0.0
    half: int | None = None
    die: Mapping[str, Any] | None = None
    times: int | None = 1
    skip: int = 0
    match: Callable[[Mapping[str, Any]], bool] | None = None
    hits: int = 0
    _hit: threading.Event = field(default_factory=threading.Event, repr=False)
    _go: threading.Event = field(default_factory=threading.Event, repr=False)

    async def reached(self, timeout: float = 30.0) -> None:
        """Return once the rule has been hit."""
        from openenv_sandbox.lifecycle import daemon_call

        if not await daemon_call(self._hit.wait, timeout):
            raise TimeoutError(f"no {self.op} call came within {timeout:g} s")

    def wait_reached(self, timeout: float = 30.0) -> bool:
        """`reached` for a test without a loop."""
        return self._hit.wait(timeout)

    def release(self) -> None:
        """Let the calls that hang go on."""
        self._go.set()

    def apply(self) -> None:
        """Called by the cloud, in a thread of its own."""
        self._hit.set()
        if self.delay:
            self._go.wait(self.delay)
        if self.hang:
            self._go.wait()
        if self.status is not None:
            raise FakeApiError(self.status, self.message, retry_after=self.retry_after)


class Faults:
    """The rules of one fake cloud."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._lock = threading.Lock()

    def add(self, op: str, **kw: Any) -> Rule:
        """Add a `Rule` and return it."""
        rule = Rule(op, **kw)
        with self._lock:
            self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove every rule and let what hangs go on."""
        with self._lock:
            rules, self.rules = self.rules, []
        for rule in rules:
            rule.release()

    def take(self, op: str, args: Mapping[str, Any]) -> list[Rule]:
        """The rules that apply to this call, counted."""
        taken = []
        with self._lock:
            for rule in self.rules:
                if rule.op != op or (rule.match is not None and not rule.match(args)):
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                elif rule.times is None or rule.hits < rule.times:
                    rule.hits += 1
                    taken.append(rule)
                    if rule.status is not None:
                        break  # the call ends by this one: the next rule waits for the next call
        return taken

    def unused(self) -> list[Rule]:
        """Rules that were never hit: a test that has some proves nothing."""
        return [rule for rule in self.rules if rule.hits == 0]


class FakeClock:
    """A clock that stands still until a test moves it; the launcher's timers and the fake cloud share it."""

    def __init__(self, start: float | None = None) -> None:
        self._now = time.time() if start is None else start
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._running: set[asyncio.Task[Any]] = set()
        self.listeners: list[Callable[[], None]] = []

    def time(self) -> float:
        """Unix time in seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return when `advance` has moved the clock so far."""
        task = asyncio.current_task()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._now + max(seconds, 0.0), future)
        self._sleepers.append(entry)
        if task is not None:
            self._running.discard(task)
        try:
            await future
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
        if task is not None:
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def advance(self, seconds: float) -> None:
        """Move on, waking every sleeper in order and letting each work until it sleeps again or ends."""
        target = self._now + seconds
        await self._settle()
        while True:
            due = min((entry for entry in self._sleepers if entry[0] <= target), key=lambda e: e[0], default=None)
            self._now = max(self._now, due[0] if due is not None else target)
            for listener in self.listeners:
                listener()
            if due is None:
                break
            self._sleepers.remove(due)
            if not due[1].done():
                due[1].set_result(None)
            await self._settle()
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        deadline = time.monotonic() + 30
        while self._running:
            if time.monotonic() > deadline:
                raise TimeoutError(f"still at work after 30 s: {self._running}")
            await asyncio.sleep(0.001)
