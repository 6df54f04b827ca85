"""Whether the process that owns a run is alive: a lock it holds, and a second witness."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class RunLock:
    """The lock file of this process's run. The kernel drops the lock with the process, however it ends.

    The lock belongs to the open file, so a forked child would keep its parent's run alive: `drop_in_child` is called
    there before user code runs.
    """

    def __init__(self, folder: Path) -> None:
        self.run_id = secrets.token_hex(4)
        self.path = folder / f"{self.run_id}.lock"
        # Locked under another name first: no other process can see the file of a living run unlocked.
        hidden = folder / f".{self.run_id}.new"
        self._fd: int | None = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if not _lock(self._fd, exclusive=True):
                raise OSError(f"{hidden} cannot be locked")
            os.write(self._fd, witness().encode())
            os.replace(hidden, self.path)
        except BaseException:
            self.release()
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise

    def release(self, *, remove: bool = False) -> None:
        """Give up the run; with ``remove`` its file goes too."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if remove:
            with contextlib.suppress(OSError):
                self.path.unlink()
        with contextlib.suppress(OSError):
            os.close(fd)

    drop_in_child = release


def alive(folder: Path, run_id: str, seen: str = "") -> bool:
    """Whether the owner of a run lives.

    Args:
        folder: Where lock files lie.
        run_id: The run.
        seen: The `witness` it left in its rows; a lock that a forked child still holds does not outvote it.
    """
    if not run_id.isalnum():  # it may come from a label that anybody could write
        return False
    try:
        fd = os.open(folder / f"{run_id}.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # cannot be told: never delete on a guess
    try:
        # Shared, so that two who ask at once do not take each other for the owner.
        if _lock(fd, exclusive=False):
            return False
    finally:
        os.close(fd)
    return not _witness_gone(seen)


def sweep(folder: Path, keep: set[str]) -> None:
    """Remove lock files of dead runs that nobody needs to ask about any more."""
    for path in folder.glob("*.lock"):
        if path.stem not in keep and not alive(folder, path.stem):
            with contextlib.suppress(OSError):
                path.unlink()


def witness(pid: int | None = None) -> str:
    """``boot:pid-namespace:pid:start`` of a process; empty where the system does not tell."""
    number = os.getpid() if pid is None else pid
    where, start = _here(), _start_time(number)
    return f"{where}:{number}:{start}" if where and start else ""


def _witness_gone(seen: str) -> bool:
    where, _, rest = seen.rpartition(":")
    where, _, pid = where.rpartition(":")
    if not rest or not pid.isdecimal() or where != _here():
        return False  # another boot, machine or namespace: only the lock can tell
    return _start_time(int(pid)) != rest


def _here() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot}:{namespace.strip('pid:[]')}"


def _start_time(pid: int) -> str:
    """Start of a process in clock ticks since boot; empty when it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before may contain anything
    return "" if fields[0] in "ZX" else fields[19]


def _lock(fd: int, *, exclusive: bool) -> bool:
    try:
        if sys.platform == "win32":
            # One byte far behind the text: locked bytes cannot be read there.
            os.lseek(fd, 1 << 20, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            if not exclusive:
                os.lseek(fd, 1 << 20, os.SEEK_SET)
                msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
