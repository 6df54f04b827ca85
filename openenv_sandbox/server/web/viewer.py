"""One open tab of the page, and what waits to be sent to it."""

from __future__ import annotations

import asyncio

from openenv_sandbox.server.worker import deliver


class Viewer:
    """One open tab.

    Args:
        live: It takes the small messages of our page, not whole states.
        owner: It is the visitor's own, not one he has shared the episode with.
    """

    QUEUED = 64
    """Messages that may wait for a slow tab; one that is slower must connect again."""

    def __init__(self, *, live: bool, owner: bool) -> None:
        self.live = live
        self.owner = owner
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def push(self, message: bytes) -> None:
        """Send a message, sooner or later; test clients have one event loop for each request."""
        if asyncio.get_running_loop() is self._loop:
            self._put(message)
        else:
            deliver(self._loop, self._put, message)

    def _put(self, message: bytes) -> None:
        if self.queue.qsize() >= self.QUEUED:
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(None)
        else:
            self.queue.put_nowait(message)
