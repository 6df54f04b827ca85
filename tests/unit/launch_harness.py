"""What the launch tests share: ways to cancel, and the look at what is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from openenv_sandbox.journal import Journal

if TYPE_CHECKING:
    from openenv_sandbox.testing.fake import FakeCloud

Work = Callable[[], Awaitable[Any]]


class Canceller:
    """Runs work in a task of its own and cancels it in one way."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.scope: anyio.CancelScope | None = None
        self.timeout: Any = None
        self.task: asyncio.Task[Any] | None = None

    def start(self, work: Work) -> asyncio.Task[Any]:
        self.task = asyncio.get_running_loop().create_task(self._run(work))
        return self.task

    async def _run(self, work: Work) -> Any:
        if self.mode == "timeout":
            async with asyncio.timeout(None) as self.timeout:  # type: ignore[attr-defined,unused-ignore]
                return await work()
        with anyio.CancelScope() as self.scope:
            return await work()

    async def cancel(self) -> None:
        assert self.task is not None
        loop = asyncio.get_running_loop()
        if self.mode == "scope":
            assert self.scope is not None
            self.scope.cancel()
        elif self.mode == "timeout":
            self.timeout.reschedule(loop.time() - 1)
        else:
            for _ in range(2 if self.mode == "twice" else 1):
                self.task.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)

    async def ended(self) -> None:
        """The work was cancelled, and says so as that way of cancelling does."""
        assert self.task is not None
        done, _ = await asyncio.wait({self.task}, timeout=60)
        assert done, "still running after 60 s"
        if self.mode == "scope":
            assert self.task.result() is None
            assert self.scope is not None
            assert self.scope.cancelled_caught
        elif self.mode == "timeout":
            assert isinstance(self.task.exception(), TimeoutError)
        else:
            assert self.task.cancelled()


MODES = ["scope", "cancel", "twice"] + (["timeout"] if sys.version_info >= (3, 11) else [])


async def nothing_left(cloud: FakeCloud, timeout: float = 20.0) -> None:
    """No sandbox runs, no row waits; background work may take a moment."""
    journal = await Journal.open()

    async def clean() -> bool:
        return not cloud.live() and not await journal.rows()

    await until(clean, timeout)


async def until(true: Callable[[], Awaitable[bool]], timeout: float = 20.0) -> None:
    """Return when ``true()`` is."""
    end = asyncio.get_running_loop().time() + timeout
    while not await true():
        assert asyncio.get_running_loop().time() < end, f"not within {timeout:g} s"
        await asyncio.sleep(0.01)


def notes(error: BaseException) -> str:
    """What was added below an error."""
    return "\n".join(getattr(error, "__notes__", []))
