"""Making and reading the tar archives of `openenv_sandbox.trees`. Synchronous: called in worker threads."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

from openenv_sandbox.errors import FileError

if TYPE_CHECKING:
    from typing import BinaryIO

    from typing_extensions import Self

_COPY = 1 << 20
_ABOUT_NEXT = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, b"L", b"K")
_HEADERS_IN_ROW, _HEADER_MAX = 16, 1 << 20
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True)
class Limits:
    """Bounds of one copy: bytes of contents, number of entries, and whether bad ones are left out or fail it."""

    max_bytes: int
    max_files: int
    skip: bool = False


@dataclass(frozen=True)
class Member:
    """One entry of a local tree."""

    name: str
    kind: Literal["file", "folder", "link"]
    source: str
    mode: int
    size: int = 0
    link: str = ""


@dataclass
class Archive:
    """A local tree, looked through and packed; or a single file."""

    members: list[Member] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    tar: BinaryIO | None = None
    size: int = 0
    single: BinaryIO | None = None
    mode: int = 0o644

    def close(self) -> None:
        """Close the files."""
        for file in (self.tar, self.single):
            if file is not None:
                file.close()


def pack(path: Path, limits: Limits) -> Archive:
    """Look ``path`` through without following links, then pack it.

    Raises:
        FileError: It does not exist, has entries that cannot be copied, or is over a limit.
    """
    try:
        info = os.stat(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(info.st_mode):
        return _single(path, info, limits)
    archive = Archive()
    _scan(path, "", archive, limits)
    if archive.skipped and not limits.skip:
        raise FileError(
            f"{path}: cannot be copied: {'; '.join(archive.skipped[:5])}", hint='on_bad="skip" leaves such files out'
        )
    total = sum(member.size for member in archive.members)
    if total > limits.max_bytes:
        raise FileError(f"{path}: {total} bytes are over the limit of {limits.max_bytes}", hint="raise max_bytes")
    archive.tar = tempfile.TemporaryFile()
    try:
        _write(archive)
    except BaseException:
        archive.close()
        raise
    return archive


def _single(path: Path, info: os.stat_result, limits: Limits) -> Archive:
    if not stat.S_ISREG(info.st_mode):
        raise FileError(f"{path}: {_SPECIAL.get(stat.S_IFMT(info.st_mode), 'not a file')}")
    if info.st_size > limits.max_bytes:
        raise FileError(
            f"{path}: {info.st_size} bytes are over the limit of {limits.max_bytes}", hint="raise max_bytes"
        )
    try:
        return Archive(single=open(path, "rb"), mode=stat.S_IMODE(info.st_mode))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error


def _scan(folder: Path, prefix: str, archive: Archive, limits: Limits) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError as error:
        archive.skipped.append(f"{prefix or folder}: {error.strerror}")
        return
    for entry in entries:
        name = prefix + entry.name
        info = entry.stat(follow_symlinks=False)
        kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)
        if kind == stat.S_IFLNK:
            archive.members.append(Member(name, "link", entry.path, 0o777, link=os.readlink(entry.path)))
        elif kind == stat.S_IFDIR:
            archive.members.append(Member(name, "folder", entry.path, mode))
            _scan(Path(entry.path), name + "/", archive, limits)
        elif kind != stat.S_IFREG:
            archive.skipped.append(f"{name}: {_SPECIAL.get(kind, 'not a file')}")
        elif not os.access(entry.path, os.R_OK):
            archive.skipped.append(f"{name}: not readable")
        else:
            archive.members.append(Member(name, "file", entry.path, mode, size=info.st_size))
        if len(archive.members) > limits.max_files:
            raise FileError(f"more than {limits.max_files} files", hint="raise max_files")


def _write(archive: Archive) -> None:
    with tarfile.open(fileobj=archive.tar, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member in archive.members:
            entry = tarfile.TarInfo(member.name)
            entry.mode = member.mode
            if member.kind == "folder":
                entry.type = tarfile.DIRTYPE
                entry.mode |= 0o300  # else nobody but root could unpack into it
                tar.addfile(entry)
            elif member.kind == "link":
                entry.type, entry.linkname = tarfile.SYMTYPE, member.link
                tar.addfile(entry)
            else:
                entry.size = member.size
                with open(member.source, "rb") as file:
                    entry.mtime = int(os.fstat(file.fileno()).st_mtime)
                    _add(tar, entry, file)
    assert archive.tar is not None
    archive.size = archive.tar.tell()
    archive.tar.seek(0)


def _add(tar: tarfile.TarFile, entry: tarfile.TarInfo, file: IO[bytes]) -> None:
    try:
        tar.addfile(entry, file)
    except OSError as error:
        raise FileError(f"{entry.name}: changed while it was read") from error


def inside(name: PurePosixPath) -> PurePosixPath | None:
    """``name`` without ``.`` and ``..``; None when it leads out."""
    parts: list[str] = []
    for part in name.parts:
        if part == "/" or part == "..":
            if part == "/" or not parts:
                return None
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def link_inside(name: PurePosixPath, link: str) -> bool:
    """Whether a link called ``name``, in a tree of folders and such links, leads to a place in that tree.

    ``..`` counts only at the beginning: behind a name, which may be a link itself, it leads nobody knows where.
    """
    parts = [part for part in PurePosixPath(link).parts if part != "."]
    while parts and parts[0] == "..":
        parts.pop(0)
    up = PurePosixPath(link).parts.count("..")
    return bool(link) and not link.startswith("/") and ".." not in parts and up <= len(name.parts) - 1


def unpack(file: BinaryIO, target: Path, limits: Limits) -> list[str]:
    """Unpack an archive of strangers into ``target``, which must not exist. Returns what was left out and why.

    Raises:
        FileError: An entry must not come out (unless left out), a limit is passed, or it is no archive.
    """
    file.seek(0)
    work = _Unpacking(target, limits)
    target.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=file, mode="r|", errors="surrogateescape", tarinfo=_bounded_headers()) as tar:
            for entry in tar:
                work.take(tar, entry)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise FileError(f"not a tar archive, or cut off: {error}") from error
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"unpacking failed: {error.strerror or error}") from error
    work.finish()
    return work.skipped


def _bounded_headers() -> type[tarfile.TarInfo]:
    """Headers about the entry after them are read into memory, each inside the one before: few and small ones do."""
    row = 0

    class Bounded(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal row
            entry = super().frombuf(buf, encoding, errors)
            row = row + 1 if entry.type in _ABOUT_NEXT else 0
            if row > _HEADERS_IN_ROW or (row and entry.size > _HEADER_MAX):
                raise FileError("an entry's headers are too many or too large")
            return entry

    return Bounded


class _Unpacking:
    def __init__(self, target: Path, limits: Limits) -> None:
        self.target, self.limits = target, limits
        self.skipped: list[str] = []
        self._bytes = 0
        self._count = 0
        self._made: dict[PurePosixPath, str] = {PurePosixPath(): "folder"}
        self._links: list[tuple[PurePosixPath, str]] = []
        self._modes: list[tuple[PurePosixPath, int]] = []

    def take(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        self._count += 1
        if self._count > self.limits.max_files + 1:  # the tree's own folder is an entry too
            raise FileError(f"more than {self.limits.max_files} files", hint="raise max_files")
        raw = PurePosixPath(entry.name)
        name = None if raw.is_absolute() or ".." in raw.parts or "\0" in entry.name else inside(raw)
        if name is None:
            self._bad(entry.name, "a name that leads out")
        elif entry.isdir():
            if self._folder(name):
                self._modes.append((name, entry.mode & 0o777))
        elif entry.isreg():
            self._file(tar, entry, name)
        elif entry.issym():
            if not link_inside(name, entry.linkname):
                self._bad(entry.name, f"a link that leads out, to {entry.linkname[:200]}")
            elif name in self._made:
                self._bad(entry.name, "a name that occurs twice")
            elif self._folder(name.parent):
                self._made[name] = "link"
                self._links.append((name, entry.linkname))
        elif entry.islnk():
            self._hard_link(entry, name)
        else:
            self._bad(entry.name, "a special file")

    def _bad(self, name: str, why: str) -> None:
        shown = name.encode("utf-8", "backslashreplace").decode()[:200]
        if not self.limits.skip:
            raise FileError(f"{shown}: {why}", hint='on_bad="skip" leaves such entries out')
        self.skipped.append(f"{shown}: {why}")

    def _folder(self, name: PurePosixPath) -> bool:
        for place in (*reversed(name.parents), name):
            known = self._made.get(place)
            if known == "folder":
                continue
            if known is not None:
                self._bad(str(name), "a name below something that is no folder")
                return False
            os.mkdir(self.target / place, 0o700)
            self._made[place] = "folder"
        return True

    def _file(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, name: PurePosixPath) -> None:
        self._bytes += entry.size
        if self._bytes > self.limits.max_bytes:
            raise FileError(f"more than {self.limits.max_bytes} bytes", hint="raise max_bytes")
        if name in self._made or not self._folder(name.parent):
            if name in self._made:
                self._bad(entry.name, "a name that occurs twice")
            return
        source: Any = tar.extractfile(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(self.target / name, flags, 0o600), "wb") as out:
            left = entry.size
            while left > 0:
                data = source.read(min(_COPY, left))
                if not data:
                    raise FileError(f"{entry.name}: the archive is cut off")
                out.write(data)
                left -= len(data)
            os.fchmod(out.fileno(), entry.mode & 0o777)
        self._made[name] = "file"

    def _hard_link(self, entry: tarfile.TarInfo, name: PurePosixPath) -> None:
        other = inside(PurePosixPath(entry.linkname))
        if other is None or self._made.get(other) != "file" or name in self._made:
            self._bad(entry.name, "a hard link to nothing in the tree")
        elif self._folder(name.parent):
            os.link(self.target / other, self.target / name, follow_symlinks=False)
            self._made[name] = "file"

    def finish(self) -> None:
        # Links last: until here no path of the tree could lead anywhere else.
        for name, link in self._links:
            os.symlink(link, self.target / name)
        for name, mode in reversed(self._modes):
            os.chmod(self.target / name, mode | 0o700)
