"""Where this user's state and configuration lie, and on what kind of file system."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
from pathlib import Path

from openenv_sandbox.errors import ConfigError

NETWORK_TYPES = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs afs lustre gpfs ceph beegfs glusterfs ocfs2 gfs2 pvfs2 orangefs panfs davfs "
    "ncpfs coda 9p fuse.sshfs fuse.s3fs fuse.gcsfuse fuse.goofys fuse.rclone fuse.glusterfs fuse.ceph fuse.juicefs "
    "fuse.curlftpfs fuse.davfs2 fuse.blobfuse fuse.blobfuse2 fuse.mount-s3 fuse.hdfs fuse.beegfs "
    "fuse.wekafs wekafs".split()
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def remove_tree(folder: Path) -> None:
    """Remove a tree that strangers made: however deep, whatever its modes. What cannot go stays, silently.

    Folders are moved up before they are looked into, so that no path gets long and nothing recurses.
    """
    with contextlib.suppress(OSError):
        if folder.is_symlink() or not folder.is_dir():
            return folder.unlink()
        os.chmod(folder, 0o700)
    stuck: set[str] = set()
    while left := [entry for entry in _entries(folder) if entry.name not in stuck]:
        for entry in left:
            try:
                _empty(entry, folder)
            except OSError:
                stuck.add(entry.name)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _empty(entry: os.DirEntry[str], top: Path) -> None:
    if not entry.is_dir(follow_symlinks=False):
        return os.unlink(entry.path)
    os.chmod(entry.path, 0o700)
    for below in _entries(entry.path):
        if below.is_dir(follow_symlinks=False):
            os.chmod(below.path, 0o700)
            os.rename(below.path, top / secrets.token_hex(8))
        else:
            os.unlink(below.path)
    os.rmdir(entry.path)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def state_dir() -> Path:
    """``OPENENV_STATE_DIR``, else the platform's folder for this user's state. It need not exist.

    Raises:
        ConfigError: Neither the variable nor a home folder says where.
    """
    named = os.environ.get("OPENENV_STATE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local") / "openenv"
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "openenv"
    return _xdg("XDG_STATE_HOME", ".local/state")


def user_config_file() -> Path | None:
    """The user's own configuration file; None without a home folder. It need not exist."""
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("APPDATA") or _home() / "AppData" / "Roaming") / "openenv" / "openenv.toml"
        return _xdg("XDG_CONFIG_HOME", ".config") / "openenv.toml"
    except ConfigError:
        return None


def file_system(path: Path) -> str:
    """The type of the file system ``path`` lies on, as mount tables name it; empty where that cannot be told."""
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Of several mounts on one point the last hides the others.
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ", 1)[0]
    return kind


def _xdg(variable: str, default: str) -> Path:
    named = os.environ.get(variable)
    # The specification says that a relative path is to be ignored.
    return (Path(named) if named and os.path.isabs(named) else _home() / default) / "openenv"


def _home() -> Path:
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise ConfigError("there is no home folder to keep state in", hint="set OPENENV_STATE_DIR to a local folder")
    return home
