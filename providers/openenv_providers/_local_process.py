"""Processes and ports as the supervisor of a local sandbox needs them; standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time


def exit_code(status: int) -> int:
    """A wait status as a shell tells it: 137 for SIGKILL."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def bindable(port: int) -> bool:
    """Whether nobody listens on the loopback ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prctl:
    """The three process attributes that Python does not offer; does nothing where the kernel is not Linux."""

    DUMPABLE, SUBREAPER = 4, 36

    def __init__(self, linux: bool) -> None:
        self._call = None
        if linux:
            import ctypes

            self._call = ctypes.CDLL(None).prctl

    def set(self, option: int, value: int) -> None:
        """Set one; a kernel that refuses is a kernel without it."""
        if self._call is not None:
            self._call(option, value, 0, 0, 0)


def _parent(pid: int) -> int | None:
    """The parent of a living process; None for the dead, reaped or not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(parent)


def children_of(root: int) -> list[int]:
    """Every living descendant of ``root``, by the kernel's process table; empty where there is no /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    parents = {pid: parent for pid in pids if (parent := _parent(pid)) is not None}
    found, todo = [], [root]
    while todo:
        parent_pid = todo.pop()
        below = [pid for pid, parent in parents.items() if parent == parent_pid]
        found += below
        todo += below
    return found


def kill_tree(root: int, *, wait: float = 5.0) -> None:
    """Kill every descendant of ``root``, but not ``root`` itself, and wait until they are dead.

    They are frozen first, so that none forks away meanwhile.
    """
    deadline = time.monotonic() + wait
    frozen: set[int] = set()
    while time.monotonic() < deadline:
        new = set(children_of(root)) - frozen
        for pid in new:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        if not new:
            break
        frozen |= new
    for pid in frozen:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    while any(_parent(pid) for pid in frozen) and time.monotonic() < deadline:
        time.sleep(0.001)


def become(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, stdio: tuple[int, int, int], keep: int) -> OSError:
    """Turn this process into ``argv``. Returns only with the reason why not."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        if keep >= 0:
            os.set_inheritable(keep, True)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        return error
