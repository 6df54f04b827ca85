"""Looks after idle blocking sessions, so that nothing has to happen on a socket while its owner thinks."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from typing import Protocol


class Kept(Protocol):
    """A session that wants to be looked after."""

    def fileno(self) -> int:
        """The socket's descriptor, -1 when there is none."""
        ...

    def look_after(self, now: float, readable: bool) -> None:
        """Do what is due, unless somebody uses the session just now."""
        ...


class Keeper:
    """One daemon thread that looks at every idle session each `tick` seconds."""

    tick = 1.0

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._wake = threading.Event()
        self._running = False

    def add(self, member: Kept) -> None:
        """Look after a session from now on; it is forgotten when nobody else holds it."""
        if self._pid != os.getpid():  # threads and locks do not come along into a fork, and its sockets are not ours
            self._reset()
        with self._lock:
            self._members.add(member)
            self._wake.set()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True, name="openenv-keeper").start()

    def remove(self, member: Kept) -> None:
        """Forget a session."""
        if self._pid == os.getpid():
            with self._lock:
                self._members.discard(member)

    def _run(self) -> None:
        while True:
            self._wake.wait(self.tick)
            self._wake.clear()
            with self._lock:
                members = list(self._members)
                if not members:
                    self._running = False
                    return
            poller = select.poll() if hasattr(select, "poll") else None
            by_fd = {fd: one for one in members if (fd := one.fileno()) >= 0}
            ready: set[int] = set(by_fd)
            if poller is not None:
                for fd in by_fd:
                    poller.register(fd, select.POLLIN)
                ready = {fd for fd, _ in poller.poll(0)}
            now = time.monotonic()
            # Popped, so that the thread keeps no session alive while it sleeps.
            members.clear()
            while by_fd:
                fd, member = by_fd.popitem()
                member.look_after(now, fd in ready)
                del member


keeper = Keeper()
