"""Runs a server and starts it anew when a source file of its folder changes: ``FOLDER FD COMMAND…``.

It stands between the supervisor and the server, in the sandbox, so the sandbox stays the same: its port, its token, its
name. A server that ends by itself at its first start ends this too, as without it. One that a change broke is started
again at the next change; until then who connects is turned away at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

SUFFIXES = (".py", ".toml", ".yaml", ".yml", ".html", ".css", ".js")
"""Sources; data that a server may write itself is none."""
IGNORED = ("__pycache__", "node_modules", "venv", "build", "dist")
GROUPS = sys.platform.startswith("linux")
"""Elsewhere the supervisor ends what it cannot see by the group of this process, which servers must then not leave."""
LOOK_S = 0.25
GRACE_S = 3.0
Seen = Mapping[str, tuple[int, int]]


def look(folder: str) -> Seen:
    """Time and size of every source below ``folder``."""
    return {path: found for path in _sources(folder) if (found := _stat(path)) is not None}


def _sources(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in IGNORED]
        yield from (os.path.join(root, name) for name in files if name.endswith(SUFFIXES))


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def changed(before: Seen, after: Seen) -> list[str]:
    """What came, went or is another."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class Reloader:
    """One server after the other.

    Args:
        folder: Which is watched.
        fd: The listening socket that the servers take; -1 where they listen by themselves.
        argv: The server.
    """

    def __init__(self, folder: str, fd: int, argv: list[str]) -> None:
        self.folder, self.fd, self.argv = folder, fd, argv
        self.seen = look(folder)
        self.process = self._start()

    def run(self) -> int:
        """Until the first server ends by itself; its exit code."""
        fresh = True
        while True:
            time.sleep(LOOK_S)
            code = self.process.poll()
            if code is not None and fresh:
                return code if code >= 0 else 128 - code
            if code is not None:
                self._turn_away()
            now = look(self.folder)
            if not (news := changed(self.seen, now)):
                continue
            while (later := look(self.folder)) != now:  # an editor, or git, is still writing
                now = later
                time.sleep(LOOK_S)
            self.seen, fresh = now, False
            shown = ", ".join(os.path.relpath(path, self.folder) for path in news[:3])
            self._say(f"{shown} changed: the server starts anew")
            if any(path.endswith("pyproject.toml") for path in news):
                self._say("dependencies are not installed by this: launch again where they changed")
            self.end()
            self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        fds = (self.fd,) if self.fd >= 0 else ()
        return subprocess.Popen(self.argv, pass_fds=fds, start_new_session=GROUPS)

    def end(self) -> None:
        """End the server; with it what it made, where that can be told apart."""
        self._kill(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        self._kill(signal.SIGKILL)
        self.process.wait()

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if GROUPS:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def _turn_away(self) -> None:
        """Nobody serves the socket: close what is waiting there, so that nobody waits for an answer."""
        if self.fd < 0:
            return
        with socket.socket(fileno=os.dup(self.fd)) as listener:
            while select.select([listener], [], [], 0)[0]:
                with contextlib.suppress(OSError):
                    listener.accept()[0].close()

    def _say(self, text: str) -> None:
        sys.stderr.write(f"[reload] {text}\n")
        sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Entry."""
    reloader = Reloader(arguments[0], int(arguments[1]), arguments[2:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        return reloader.run()
    finally:
        reloader.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
