"""Container objects of older code when the caller is cancelled, or when the server does not come up."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from openenv_sandbox.client.generic import GenericEnvClient

pytestmark = pytest.mark.anyio


class Slow:
    """Starts when it is allowed to."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def start_container(self, image: str = "x") -> str:
        self.begun.set()
        assert self.go_on.wait(10)
        self.said.append("started")
        return "http://127.0.0.1:9"

    def wait_for_ready(self, url: str) -> None:
        pass

    def stop_container(self) -> None:
        self.said.append("stopped")


async def by_call(slow: Slow) -> Any:
    return await GenericEnvClient.from_docker_image("x", provider=slow)


async def by_constructor(slow: Slow) -> Any:
    async with GenericEnvClient(provider=slow):
        pass


@pytest.mark.parametrize("use", [by_call, by_constructor])
async def test_a_start_that_is_cancelled_leaves_nothing(use: Any) -> None:
    """The thread that starts cannot be interrupted; what it has made in the end is stopped, before the caller goes on.

    Mutation: give up waiting for the thread
    """
    slow = Slow()
    task = asyncio.ensure_future(use(slow))
    await asyncio.to_thread(slow.begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    slow.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.said == ["started", "stopped"]


class Deaf(Slow):
    """Never answers."""

    def wait_for_ready(self, url: str) -> None:
        raise TimeoutError("no answer")


@pytest.mark.parametrize("use", [by_call, by_constructor])
async def test_a_server_that_does_not_come_up_is_stopped(use: Any) -> None:
    """Mutation: leave the container to the caller, who has no client yet"""
    deaf = Deaf()
    deaf.go_on.set()
    with pytest.raises(TimeoutError):
        await use(deaf)
    assert deaf.said == ["started", "stopped"]
