"""Copying files and whole trees in and out of any sandbox, by tar, or file by file where the image has no tar.

An archive that comes out was written by strangers. It is unpacked by our own few lines, never by ``extractall``: only
plain files, folders and links that stay inside; absolute names, ``..``, devices and pipes are refused or left out;
size and number are bounded while reading. Links are made last, so that nothing is written through one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets as random
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol

from openenv_sandbox._archive import Archive, Limits, inside, link_inside, pack, unpack
from openenv_sandbox._paths import remove_tree
from openenv_sandbox.errors import FileError
from openenv_sandbox.files import CHUNK, STREAM_LIMIT, sh
from openenv_sandbox.lifecycle import finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from os import PathLike
    from typing import BinaryIO

    from openenv_sandbox.provider import SandboxRef
    from openenv_sandbox.shell import ExecResult

log = logging.getLogger("openenv.launch")

MAX_FILES = 100_000
OnBad = Literal["fail", "skip"]

# Status 20: no such thing. Otherwise f (a file), or d and whether tar is there.
_KIND = r"""
[ -e "$1" ] || exit 20
[ -d "$1" ] || { echo f; exit; }
if command -v tar >/dev/null 2>&1; then echo d tar; else echo d; fi
"""
_HAS_TAR = "command -v tar >/dev/null 2>&1"
_TMP = 'for d in "$TMPDIR" /tmp /dev/shm /var/tmp; do [ -d "$d" ] && [ -w "$d" ] && echo "$d" && exit; done; exit 27'
# The names are kept as they are (no ./ in front matters not), owners become whoever runs this.
_UNPACK = 'mkdir -p "$1" && tar -xf "$2" -C "$1" -o -p; e=$?; rm -f "$2"; exit $e'
# head bounds what a growing tree can fill the disk with.
_PACK = 'umask 077; tar -cf - -C "$1" . 2>"$2.err" | head -c "$3" >"$2"; cat "$2.err" >&2; rm -f "$2.err"'
_LIST = r"""
cd "$1" || exit 20
walk() {
  for p in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -L "$p" ]; then printf 'l%s\0%s\0' "$p" "$(readlink "$p")"
    elif [ -d "$p" ]; then printf 'd%s\0\0' "$p"; (walk "$p")
    elif [ -f "$p" ]; then x=; [ ! -x "$p" ] || x=x; printf 'f%s\0%s\0' "$p" "$x"
    elif [ -e "$p" ]; then printf 'o%s\0\0' "$p"; fi
  done
}
walk .
"""


class Box(Protocol):
    """What is needed of a sandbox."""

    @property
    def ref(self) -> SandboxRef:
        """Its name."""

    async def _command(
        self, argv: list[str], *, user: str | None = ..., timeout: Any = ..., max_output: int = ...
    ) -> ExecResult:
        """Run one short command."""

    async def write(
        self, path: str, data: Any, *, mode: int = ..., user: str | None = ..., max_bytes: int = ...
    ) -> None:
        """Write a file."""

    def read_stream(self, path: str, *, max_bytes: int = ..., user: str | None = ...) -> AsyncIterator[bytes]:
        """Read a file."""
        ...


async def upload(
    box: Box,
    local: str | PathLike[str],
    remote: str,
    *,
    user: str | None = None,
    max_bytes: int = STREAM_LIMIT,
    max_files: int = MAX_FILES,
    on_bad: OnBad = "fail",
) -> None:
    """Copy a file or a tree into the sandbox. Links are kept as links; the user that commands run as owns the rest.

    Args:
        box: The sandbox.
        local: A file, or a folder whose contents go into ``remote``.
        remote: Name of the file or folder there; made if missing.
        user: Write as this user.
        max_bytes: More than this is refused before anything moves.
        max_files: Likewise.
        on_bad: What cannot go (pipes, sockets, devices, unreadable files): ``fail`` before anything moves, or
            ``skip`` with a warning.

    Raises:
        FileError: Something cannot go, is over a limit, or cannot be written there.
        SandboxGone: The sandbox ended.
    """
    path = Path(local)
    limits = Limits(max_bytes, max_files, on_bad == "skip")
    archive = await _in_thread(box, pack, path, limits)
    try:
        _warn(archive.skipped)
        if archive.single is not None:
            await box.write(remote, _file_pieces(archive.single), mode=archive.mode, user=user, max_bytes=max_bytes)
            return
        if (await box._command(sh(_HAS_TAR), user=user)).exit_code == 0:
            await _upload_tar(box, archive, remote, user)
        else:
            await _upload_each(box, archive, remote, user)
    finally:
        await asyncio.to_thread(archive.close)


async def _upload_tar(box: Box, archive: Archive, remote: str, user: str | None) -> None:
    assert archive.tar is not None
    name = await _temporary(box, user)
    await box.write(name, _file_pieces(archive.tar), mode=0o600, user=user, max_bytes=archive.size)
    result = await box._command(sh(_UNPACK, remote, name), user=user, timeout=None)
    if result.exit_code != 0:
        said = result.stderr[-500:].decode("utf-8", "replace").strip()
        raise FileError(f"{remote}: unpacking there failed: {said}", ref=box.ref)


async def _upload_each(box: Box, archive: Archive, remote: str, user: str | None) -> None:
    await _checked(box, sh('mkdir -p "$1"', remote), remote, user)
    for member in archive.members:
        target = f"{remote}/{member.name}"
        if member.kind == "folder":
            await _checked(box, sh('mkdir -p "$1" && chmod "$2" "$1"', target, f"{member.mode:o}"), target, user)
        elif member.kind == "link":
            await _checked(box, sh('rm -f "$1"; ln -s "$2" "$1"', target, member.link), target, user)
        else:
            with await asyncio.to_thread(open, member.source, "rb") as file:
                await box.write(target, _file_pieces(file), mode=member.mode, user=user)


async def download(
    box: Box,
    remote: str,
    local: str | PathLike[str],
    *,
    user: str | None = None,
    max_bytes: int = STREAM_LIMIT,
    max_files: int = MAX_FILES,
    on_bad: OnBad = "fail",
) -> None:
    """Copy a file or a tree out of the sandbox, whole or not at all.

    Args:
        box: The sandbox.
        remote: A file, or a folder whose contents go into ``local``.
        local: Name of the file or folder here. An existing file is replaced; an existing folder must be empty.
        user: Read as this user.
        max_bytes: More than this is refused.
        max_files: Likewise.
        on_bad: What must not come out (links that lead out of the tree, absolute names, devices, pipes): ``fail``,
            or ``skip`` with a warning.

    Raises:
        FileError: It does not exist, something must not come out, a limit is passed, or ``local`` is not free.
        SandboxGone: The sandbox ended.
    """
    kind = await box._command(sh(_KIND, remote), user=user)
    if kind.exit_code != 0:
        raise FileError(f"{remote}: no such file or folder", ref=box.ref)
    target = Path(local)
    limits = Limits(max_bytes, max_files, on_bad == "skip")
    words = kind.text().split()
    part = target.parent / f"{target.name}.oe-{random.token_hex(4)}"
    try:
        if words == ["f"]:
            await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
            await _to_file(box, remote, part, max_bytes, user)
            await asyncio.to_thread(os.replace, part, target)
            return
        await _in_thread(box, _room, target)
        if words == ["d", "tar"]:
            await _download_tar(box, remote, part, limits, user)
        else:
            await _download_each(box, remote, part, limits, user)
        await asyncio.to_thread(_into_place, part, target)
    finally:
        await finish(asyncio.to_thread(remove_tree, part), timeout=30.0)


async def _download_tar(box: Box, remote: str, part: Path, limits: Limits, user: str | None) -> None:
    name = await _temporary(box, user)
    # Headers and padding: at most 2 KiB for each file beside its contents, and the end.
    most = limits.max_bytes + 2048 * limits.max_files + 65536
    file: BinaryIO = await asyncio.to_thread(tempfile.TemporaryFile)
    try:
        result = await box._command(sh(_PACK, remote, name, most + 1), user=user, timeout=None)
        said = result.stderr[-300:].decode("utf-8", "replace").strip()
        async for piece in box.read_stream(name, max_bytes=most, user=user):
            await asyncio.to_thread(file.write, piece)
        skipped = await _in_thread(box, unpack, file, part, limits)
        unread = [line for line in said.splitlines() if line.strip()]
        if unread and not limits.skip:
            raise FileError(f"{remote}: tar could not read everything: {said}", ref=box.ref)
        _warn([*skipped, *unread])
    finally:
        await asyncio.to_thread(file.close)
        await finish(box._command(sh('rm -f "$1" "$1.err"', name), user=user), timeout=10.0)


async def _download_each(box: Box, remote: str, part: Path, limits: Limits, user: str | None) -> None:
    result = await box._command(sh(_LIST, remote), user=user, timeout=None)
    words = result.stdout.split(b"\0")[:-1]
    if result.exit_code != 0 or result.truncated or len(words) % 2:
        raise FileError(f"{remote}: its contents cannot be listed", ref=box.ref)
    left, skipped, links = limits.max_bytes, list[str](), list[tuple[str, str]]()
    if len(words) // 2 > limits.max_files:
        raise FileError(f"{remote}: more than {limits.max_files} files", ref=box.ref)
    await asyncio.to_thread(part.mkdir, parents=True)
    for entry, extra in zip(words[::2], words[1::2], strict=True):
        kind, name = chr(entry[0]), os.fsdecode(entry[1:])
        clean = inside(PurePosixPath(name))
        place = part / name
        if clean is None or ".." in PurePosixPath(name).parts:
            raise FileError(f"{remote}: a name that leads out: {name[:200]!r}", ref=box.ref)
        if kind == "d":
            await asyncio.to_thread(place.mkdir)
        elif kind == "f":
            left -= await _to_file(box, f"{remote}/{name}", place, left, user)
            if extra:
                await asyncio.to_thread(place.chmod, 0o755)
        elif kind == "l" and link_inside(clean, os.fsdecode(extra)):
            links.append((name, os.fsdecode(extra)))
        else:
            skipped.append(f"{name}: {'a link that leads out' if kind == 'l' else 'a special file'}")
    if skipped and not limits.skip:
        raise FileError(f"{remote}: not allowed out: {'; '.join(skipped[:5])}", ref=box.ref)
    for name, link in links:
        await asyncio.to_thread(os.symlink, link, part / name)
    _warn(skipped)


async def _to_file(box: Box, remote: str, local: Path, limit: int, user: str | None) -> int:
    size = 0
    file = await asyncio.to_thread(open, local, "xb")
    try:
        async for piece in box.read_stream(remote, max_bytes=limit, user=user):
            size += len(piece)
            await asyncio.to_thread(file.write, piece)
    finally:
        await asyncio.to_thread(file.close)
    return size


async def _file_pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(file.read, CHUNK):
        yield data


async def _temporary(box: Box, user: str | None) -> str:
    result = await box._command(sh(_TMP), user=user)
    if result.exit_code != 0:
        raise FileError("no writable folder in the sandbox for the archive", ref=box.ref, hint="make /tmp writable")
    return f"{result.text().strip()}/.oe-{random.token_hex(8)}.tar"


async def _checked(box: Box, argv: list[str], path: str, user: str | None) -> None:
    if (await box._command(argv, user=user)).exit_code != 0:
        raise FileError(f"{path}: not writable", ref=box.ref)


async def _in_thread(box: Box, fn: Any, *args: Any) -> Any:
    try:
        return await asyncio.to_thread(fn, *args)
    except FileError as error:
        error.ref, error.provider = box.ref, box.ref.provider
        raise


def _warn(skipped: list[str]) -> None:
    if skipped:
        log.warning("left out: %s%s", "; ".join(skipped[:10]), " …" if len(skipped) > 10 else "")


def _room(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise FileError(f"{target} exists already", hint="give a folder that does not exist, or an empty one")
    target.parent.mkdir(parents=True, exist_ok=True)


def _into_place(part: Path, target: Path) -> None:
    if target.is_dir():
        target.rmdir()
    os.rename(part, target)
