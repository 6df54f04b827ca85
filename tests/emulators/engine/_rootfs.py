"""The file system of a box: an overlay over the host's root, upper layer in memory, private folders empty."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import _ns

MASKED = {"tmp": 0o1777, "var/tmp": 0o1777, "home": 0o755, "root": 0o755, "run": 0o755, "mnt": 0o755, "srv": 0o755}
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_INIT = "mount -n -t proc proc /proc && echo && exec env --ignore-signal=CHLD cat >/dev/null 2>&1"
REPO = Path(__file__).resolve().parents[3]


def shown() -> list[str]:
    """Host folders a box must see although they lie in a masked one or on another file system: Python and the repo."""
    wanted = {sys.base_prefix, sys.prefix, str(REPO), *(p for p in sys.path if os.path.isdir(p))}
    device = os.stat("/").st_dev
    masked = tuple(f"/{name}/" for name in MASKED)
    hidden = sorted({p for p in map(os.path.realpath, wanted) if p.startswith(masked) or os.stat(p).st_dev != device})
    roots: list[str] = []
    for path in hidden:
        if not any(path.startswith(f"{root}/") for root in roots):
            roots.append(path)
    return roots


@dataclass
class Born:
    """What `make` gives: the first process and the upper layer."""

    init: subprocess.Popen[bytes]
    upper: int


def make(stage: str, name: str, layer: Path | None, paths: list[str]) -> Born:
    """Make namespaces and root of one box and start its first process; runs in a thread of its own.

    The first process is ``cat`` on a pipe that only this process holds: the box ends with it, however that happens.
    It ignores SIGCHLD, so orphans leave no zombies.
    """
    _ns.unshare(_ns.CLONE_FS | _ns.ALL & ~_ns.NEWPID)
    os.umask(0o022)
    _ns.mount("none", "/", flags=_ns.MS_REC | _ns.MS_PRIVATE)
    _ns.mount("tmpfs", stage, "tmpfs", data="mode=755")
    upper, work, root = (f"{stage}/{part}" for part in ("u", "w", "r"))
    for path in (upper, work, root):
        os.mkdir(path)
        os.chmod(path, 0o755)
    if layer is not None:
        subprocess.run(["cp", "-a", f"{layer}/.", upper], check=True)
    else:
        _mask(upper)
    _ns.mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    for path in paths:
        os.makedirs(root + path, exist_ok=True)
        _ns.bind(path, root + path)
    _devices(f"{root}/dev")
    held = os.open(upper, os.O_DIRECTORY | os.O_RDONLY)
    try:
        _ns.switch_root(root)
        _ns.loopback_up()
        _ns.hostname(name[:63])
        _ns.unshare(_ns.NEWPID)  # only now: the next child is the first process of the box
        init = subprocess.Popen(
            ["/bin/sh", "-c", _INIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            cwd="/",
            start_new_session=True,
        )
        assert init.stdout is not None
        said = init.stdout.read(1)
        if said != b"\n":
            raise OSError(f"a box did not start: {(said + init.stdout.read()).decode()!r}")
        init.stdout.close()
    except BaseException:
        os.close(held)
        raise
    return Born(init, held)


def _mask(upper: str) -> None:
    for name, mode in MASKED.items():
        path = f"{upper}/{name}"
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)
        if os.path.isdir(f"/{name}"):
            os.setxattr(path, "trusted.overlay.opaque", b"y")


def _devices(dev: str) -> None:
    _ns.mount("tmpfs", dev, "tmpfs", data="mode=755")
    mask = os.umask(0)
    try:
        for name, (major, minor) in _DEVICES.items():
            os.mknod(f"{dev}/{name}", 0o20666, os.makedev(major, minor))
        for name, target in _LINKS.items():
            os.symlink(target, f"{dev}/{name}")
        for name in ("pts", "shm"):
            os.mkdir(f"{dev}/{name}")
        os.chmod(f"{dev}/shm", 0o1777)
    finally:
        os.umask(mask)
    _ns.mount("devpts", f"{dev}/pts", "devpts", data="newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{dev}/ptmx")


def copy_upper(upper: int, target: Path) -> None:
    """Copy an upper layer, whiteouts and all."""
    subprocess.run(["cp", "-a", ".", str(target)], cwd=f"/proc/self/fd/{upper}", check=True)
