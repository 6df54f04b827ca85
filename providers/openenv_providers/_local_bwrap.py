"""bubblewrap: whether it works on this machine, and what a sandbox sees of it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

LINUX = sys.platform.startswith("linux")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# Not the whole of /etc: it holds keys and hashed passwords, which root could read.
ETC = tuple(
    f"/etc/{name}"
    for name in "alternatives ca-certificates crypto-policies fonts gai.conf group host.conf hosts ld.so.cache "
    "ld.so.conf ld.so.conf.d localtime mime.types nsswitch.conf os-release passwd pki protocols resolv.conf services "
    "ssl/certs ssl/cert.pem ssl/openssl.cnf timezone".split()
)
HOME = "/home/sandbox"
INSTALL = "apt-get install bubblewrap"
_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-user-try")


def find(wanted: str, path: str | None) -> tuple[str | None, str]:
    """The executable to use, or None and the reason.

    Args:
        wanted: ``auto``, ``bwrap`` or ``none``.
        path: The one named, None for the one on PATH.
    """
    if wanted == "none":
        return None, "isolation is switched off"
    if not LINUX:
        return None, "bubblewrap is for Linux only"
    found = shutil.which(path or "bwrap")
    if found is None:
        return None, f"{path or 'bubblewrap'} is not installed"
    reason = defect(found)
    return (None, f"bubblewrap does not work here: {reason}") if reason else (found, "")


@functools.cache
def defect(path: str) -> str:
    """Why bubblewrap at ``path`` cannot isolate here (no user namespaces, an old version, …); empty where it can."""
    command = [path, *_NAMESPACES, "--as-pid-1", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--proc", "/proc"]
    try:
        done = subprocess.run(
            [*command, "--dev", "/dev", "true"], capture_output=True, timeout=20, env={"PATH": os.defpath}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}"


def command(
    bwrap: str, argv: Sequence[str], *, read_only: Iterable[str], home: Path, tmp: Path, cwd: str, network: bool
) -> list[str]:
    """``argv`` as PID 1 of namespaces of its own.

    Args:
        bwrap: The executable.
        argv: What runs inside.
        read_only: What is visible beside the system, each at its own path.
        home: Becomes the home directory.
        tmp: Becomes /tmp.
        cwd: Working directory.
        network: Whether the machine's network is shared; else there is a loopback of its own and nothing else.
    """
    line = [bwrap, *_NAMESPACES, "--hostname", "sandbox", "--as-pid-1", "--cap-drop", "ALL"]
    if not network:
        line.append("--unshare-net")
    for path in SYSTEM:
        line += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
    for path in ETC:
        line += ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev", "--bind", str(home), HOME, "--dir", "/run"]
    line += ["--bind", str(tmp), "/tmp", "--bind", str(tmp), "/var/tmp"]
    for path in outermost(read_only):
        line += ["--ro-bind", path, path]
    return [*line, "--remount-ro", "/", "--chdir", cwd, "--", *argv]


def outermost(paths: Iterable[str]) -> list[str]:
    """``paths`` and what they lead to, without what the system or another of them already shows."""
    shown: list[str] = []
    spelled = {os.path.abspath(path) for path in paths}
    for path in sorted(spelled | {os.path.realpath(path) for path in spelled}):
        if os.path.exists(path) and not any(inside(path, other) for other in (*SYSTEM, *shown)):
            shown.append(path)
    return shown


def inside(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def hops(executable: str) -> list[str]:
    """Every name on the way from a link to the file it means."""
    names = [os.path.abspath(executable)]
    while os.path.islink(names[-1]) and len(names) < 16:
        names.append(os.path.normpath(os.path.join(os.path.dirname(names[-1]), os.readlink(names[-1]))))
    return names
