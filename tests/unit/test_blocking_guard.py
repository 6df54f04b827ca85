"""What the guard of the other tests notices."""

from __future__ import annotations

import fcntl
import os
import queue
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

import pytest
from blockbuster import BlockingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


def _sync_to_disk(folder: Path) -> None:
    with (folder / "file").open("wb") as file:
        os.fsync(file.fileno())


def _lock(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _wait_for_a_lock(folder: Path) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=0.001)


def _wait_for_a_queue(folder: Path) -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    items.put(1)
    items.get()


CALLS: dict[str, Callable[[Path], object]] = {
    "sleep": lambda _: time.sleep(0.001),
    "fsync": _sync_to_disk,
    "flock": _lock,
    "lock": _wait_for_a_lock,
    "queue": _wait_for_a_queue,
    "sqlite": lambda folder: sqlite3.connect(folder / "db").execute("select 1"),
    "file": lambda folder: (folder / "f").write_text("x"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_blocking_call_on_the_loop_is_an_error(name: str, tmp_path: Path, no_blocking: None) -> None:
    """Each kind of call that blocks is caught.

    Scenario: J04
    Mutation: take one of the functions out of the guard
    """
    with pytest.raises(BlockingError):
        CALLS[name](tmp_path)
