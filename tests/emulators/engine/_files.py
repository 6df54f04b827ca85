"""File calls as a process inside the box sees the paths; each runs in a thread of its own, see `Box`."""

from __future__ import annotations

import os
import shutil
import stat as modes
from dataclasses import dataclass

from ._proc import User


@dataclass(frozen=True)
class Entry:
    """What ``stat`` and ``listdir`` say of one path (links are not followed)."""

    name: str
    path: str
    type: str
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write(path: str, data: bytes, user: str | None, mode: int | None, parents: bool) -> None:
    who = User(user) if user else None
    if parents:
        mkdir(os.path.dirname(path) or "/", user)
    new = not os.path.exists(path)
    with open(path, "wb") as file:
        file.write(data)
    if mode is not None:
        os.chmod(path, mode)
    if who is not None and new:
        os.chown(path, who.uid, who.gid)


def mkdir(path: str, user: str | None, mode: int = 0o755) -> None:
    who = User(user) if user else None
    made = []
    while not os.path.isdir(path):
        made.append(path)
        path = os.path.dirname(path)
    for item in reversed(made):
        os.mkdir(item, mode)
        if who is not None:
            os.chown(item, who.uid, who.gid)


def stat(path: str) -> Entry:
    found = os.lstat(path)
    kind = "link" if modes.S_ISLNK(found.st_mode) else "dir" if modes.S_ISDIR(found.st_mode) else "file"
    if not modes.S_ISREG(found.st_mode) and kind == "file":
        kind = "other"
    return Entry(
        os.path.basename(path.rstrip("/")) or "/",
        path,
        kind,
        found.st_size,
        modes.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_mtime,
        os.readlink(path) if kind == "link" else None,
    )


def listdir(path: str) -> list[Entry]:
    return [stat(os.path.join(path, name)) for name in sorted(os.listdir(path))]


def remove(path: str, recursive: bool) -> None:
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
    elif recursive:
        shutil.rmtree(path)
    else:
        os.rmdir(path)


def move(source: str, target: str) -> None:
    os.rename(source, target)
