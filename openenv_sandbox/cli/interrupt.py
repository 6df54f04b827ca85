"""What Ctrl-C and SIGTERM do to a verb that holds sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox.cli.progress import short
from openenv_sandbox.cli.terminal import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from openenv_sandbox.cli.terminal import Terminal

T = TypeVar("T")
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def run(terminal: Terminal, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end. The first signal unwinds it, which cleans up; the second leaves at once.

    Raises:
        KeyboardInterrupt: A signal came and everything is cleaned up.
    """
    return asyncio.run(_watched(terminal, work))


async def _watched(terminal: Terminal, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    interrupt = _Interrupt(terminal, task)
    loop = asyncio.get_running_loop()
    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
    except NotImplementedError:
        pass  # Windows: asyncio.run turns Ctrl-C into a cancellation by itself
    try:
        return await task
    except asyncio.CancelledError:
        if interrupt.count:
            raise KeyboardInterrupt from None
        raise


class _Interrupt:
    def __init__(self, terminal: Terminal, task: asyncio.Future[Any]) -> None:
        self.terminal, self.task, self.count = terminal, task, 0

    def __call__(self) -> None:
        from openenv_sandbox.launcher import live_refs

        self.count += 1
        if self.count == 1:
            self.terminal.say("cleaning up (once more leaves at once)")
            self.task.cancel()
            return
        for ref in live_refs():
            self.terminal.say(f"\nleft: {ref}; remove it with: openenv stop {short(str(ref))}")
        os._exit(EXIT_INTERRUPTED)
