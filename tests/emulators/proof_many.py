"""Proof: thirty launches at once are bounded, block nothing and leave nothing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openenv_sandbox._slots import STARTING
from openenv_sandbox.testing.faults import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.emulators.proof_stage import Stage

MANY = 30


class ManyProof:
    """Thirty at once."""

    async def test_thirty_launches(self, stage: Stage) -> None:
        """Thirty light servers reach their first reset; creates in flight are bounded, and none is left.

        Scenario: I04, I07
        Mutation: the gate for starts is not used, a create is repeated, or a sandbox or task is left
        """
        flight = Flight()
        created = stage.count("create")
        landed = [
            Passing("create", times=None, call=flight.begin),
            Passing("create", "after", times=None, call=flight.end),
        ]
        stage.engine.faults.rules.extend(landed)
        slow = stage.faults.add("create", delay=0.05, times=None)
        before = asyncio.all_tasks()

        async def one() -> None:
            async with stage.launch(timeouts={"create": 120.0, "ready": 120.0}) as env:
                await env.reset()
                await env.step(dict(stage.emulated.action))

        done = await asyncio.gather(*(one() for _ in range(MANY)), return_exceptions=True)
        assert [error for error in done if error is not None] == []
        assert created.hits == slow.hits == MANY
        assert 1 < flight.peak <= STARTING
        await stage.nothing_left()

        async def settled() -> bool:
            left = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
            return all(task.get_name().startswith("openenv-") for task in left)

        await stage.until("no task is left", settled)


@dataclass
class Passing(Rule):
    """Calls ``call`` where a fault would happen, in a thread of the emulator's."""

    call: Callable[[], None] = lambda: None

    def apply(self) -> None:
        """A request passes here."""
        self.call()


class Flight:
    """Counts the creates between request and reply."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A request arrived."""
        with self._lock:
            self.now += 1
            self.peak = max(self.peak, self.now)

    def end(self) -> None:
        """Its work is done."""
        with self._lock:
            self.now -= 1
