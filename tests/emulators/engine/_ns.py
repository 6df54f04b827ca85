"""Linux namespaces by system call, each entered by one short-lived thread.

A thread may leave the process's namespaces alone (``unshare(CLONE_FS)`` first), and what it forks is born where the
thread is. So no helper program is needed, neither per command nor per sandbox. Such a thread is never used again.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
import sys
import threading

CLONE_FS = 0x200
NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
ALL = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


@functools.lru_cache
def needs_root() -> str | None:
    """Why boxes cannot be made here; None if they can."""
    if not sys.platform.startswith("linux") or os.uname().machine not in _PIVOT_ROOT:
        return "emulated sandboxes need Linux on x86_64 or aarch64"
    if os.geteuid() != 0:
        return "emulated sandboxes need root (namespaces and overlayfs)"
    if not hasattr(os, "pidfd_open"):
        return "emulated sandboxes need pidfd_open"
    failed: list[OSError] = []

    def probe() -> None:
        try:
            unshare(CLONE_FS | ALL)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=probe)
    thread.start()
    thread.join()
    return f"emulated sandboxes need namespaces: {failed[0]}" if failed else None


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    _check(_libc.unshare(flags), "unshare")


def enter(pidfd: int, flags: int = ALL) -> None:
    """Move the calling thread (its children, for pid) into the namespaces of a process; closes ``pidfd``."""
    try:
        if flags & NEWNS:
            unshare(CLONE_FS)
        _check(_libc.setns(pidfd, flags), "setns")
    finally:
        os.close(pidfd)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    args = [item.encode() if item is not None else None for item in (source, target, kind)]
    _check(_libc.mount(*args, ctypes.c_ulong(flags), data.encode() if data else None), f"mount {target}")


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def bind(source: str, target: str, *, read_only: bool = True) -> None:
    """Show ``source`` at ``target``."""
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount(source, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def switch_root(root: str) -> None:
    """Make ``root`` the root of the calling thread's mount namespace; the old one is gone from it."""
    os.chdir(root)
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    umount(".", MNT_DETACH)
    os.chdir("/")


def loopback_up() -> None:
    """Raise ``lo`` in the calling thread's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        up, set_flags = 0x1 | 0x40, 0x8914
        fcntl.ioctl(sock, set_flags, struct.pack("16sh14x", b"lo", up))


def hostname(name: str) -> None:
    """Name the calling thread's UTS namespace."""
    socket.sethostname(name)
