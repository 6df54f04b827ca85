"""Files and trees: sizes, modes, hostile archives, images without tar."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import textwrap
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox._archive import Limits, link_inside, pack, unpack
from openenv_sandbox.errors import FileError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio
LIMITS = Limits(10_000_000, 100)


@pytest.mark.parametrize("shell", [("/bin/dash",), ("busybox", "ash")])
async def test_binary_round_trip(
    running: Callable[..., Any], tools: Callable[..., str], shell: tuple[str, ...]
) -> None:
    """Random bytes come back with their digest; mode kept, owner is who runs commands.

    Scenario: G03
    Mutation: read or write files as text
    """
    if shell[0] == "busybox":
        path = shutil.which("busybox")
        if path is None:
            pytest.skip("busybox is not installed")
        shell = (path, "ash")
    box = running(shell=shell, path=tools(busybox=len(shell) == 2))
    data = os.urandom(5_000_000)
    await box.write("sub folder/data.bin", data, mode=0o751)
    assert hashlib.sha256(await box.read("sub folder/data.bin")).digest() == hashlib.sha256(data).digest()
    info = (box._sandbox.folder / "sub folder" / "data.bin").stat()
    assert (info.st_mode & 0o7777, info.st_uid) == (0o751, os.getuid())


async def test_limit_before_transfer(running: Callable[..., Any]) -> None:
    """A file over the limit is refused by its size; nothing of it is moved.

    Scenario: G01
    Mutation: compare the size after reading
    """
    box = running()
    os.truncate(_touch(box._sandbox.folder / "big"), 150 << 20)
    moved = 0
    original = box._sandbox.exec_raw

    async def counting(argv: Any, *, on_output: Any, **kw: Any) -> Any:
        def sink(name: Any, data: bytes) -> None:
            nonlocal moved
            moved += len(data)
            on_output(name, data)

        return await original(argv, on_output=sink, **kw)

    box._sandbox.exec_raw = counting
    with pytest.raises(FileError, match=str(150 << 20)):
        await box.read("big")
    assert moved < 1000


def test_memory_of_streams(tmp_path: Path) -> None:
    """200 MiB go in and out in less than 64 MiB of memory beyond the start.

    Scenario: G05
    Mutation: join the pieces of a stream before handing them on
    """
    program = textwrap.dedent(
        """
        import asyncio, resource, sys
        from pathlib import Path
        sys.path.append(sys.argv[2])
        from openenv_sandbox.capabilities import ExecCapabilities
        from openenv_sandbox.running import RunningSandbox
        from openenv_sandbox.spec import SandboxSpec
        from tests.unit.conftest import ChildSandbox, Owner, Provider

        async def main():
            caps = ExecCapabilities(user=False)
            folder = Path(sys.argv[1])
            child = ChildSandbox(folder, caps, ("/bin/sh",), "/usr/bin:/bin")
            box = RunningSandbox(child, provider=Provider(caps, "any"), spec=SandboxSpec(image="x"), owner=Owner())
            with open(folder / "local", "wb") as file:
                file.truncate(200 << 20)
            await box.exec("true")
            start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await box.upload(folder / "local", "inside")
            await box.download("inside", folder / "back")
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) >> 10)
            assert (folder / "back").stat().st_size == 200 << 20
        asyncio.run(main())
        """
    )
    repo = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), repo],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64


async def test_lossy_transport(running: Callable[..., Any]) -> None:
    """Bytes that are lost on the way in are an error, and the old file stays."""
    box = running()
    await box.write("file", b"old")
    original = box._sandbox.exec_raw

    async def lossy(argv: Any, *, stdin: Any, **kw: Any) -> Any:
        if stdin is not None and b"payload" in stdin:
            stdin = stdin.replace(b"payload", b"pay    ")[:-3]
        return await original(argv, stdin=stdin, **kw)

    box._sandbox.exec_raw = lossy
    with pytest.raises(FileError, match="less than was sent"):
        await box.write("file", b"payload")
    del box._sandbox.exec_raw
    assert await box.read("file") == b"old"
    assert [p.name for p in box._sandbox.folder.iterdir()] == ["file"]


async def test_lying_sandbox(running: Callable[..., Any]) -> None:
    """Sizes that are no numbers, and files that shrink, are FileErrors."""
    box = running()
    await box.write("file", b"x" * 100)
    original = box._command

    async def lying(argv: Any, **kw: Any) -> Any:
        result = await original(argv, **kw)
        return replace(result, stdout=result.stdout.replace(b"100\n", said))

    box._command = lying
    for answer, why in ((b"many\n", "size"), (b"1" * 40, "size"), (b"200\n", "shorter")):
        said = answer
        with pytest.raises(FileError, match=why):
            [piece async for piece in box.read_stream("file")]


async def test_write_interrupted(running: Callable[..., Any]) -> None:
    """A source that fails leaves neither the file nor a part of it."""
    box = running()

    async def source() -> AsyncIterator[bytes]:
        yield b"x" * (5 << 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await box.write("file", source())
    assert list(box._sandbox.folder.iterdir()) == []


def tree(folder: Path) -> Path:
    """A small tree."""
    (folder / "a" / "empty").mkdir(parents=True)
    (folder / "a" / "é b").write_bytes(b"\0\xff")
    (folder / ".hidden").write_bytes(b"h")
    (folder / "run").write_bytes(b"#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a/é b")
    return folder


def _touch(path: Path) -> Path:
    path.touch()
    return path


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("tar", [True, False])
async def test_tree_with_and_without_tar(
    running: Callable[..., Any], tools: Callable[..., str], tmp_path: Path, tar: bool
) -> None:
    """A tree goes in and out, with tar or file by file."""
    box = running(path=tools(without=() if tar else ("tar",)))
    source = tree(tmp_path / "source")
    await box.upload(source, "tree")
    await box.download("tree", tmp_path / "back")
    assert names(tmp_path / "back") == names(source) == names(box._sandbox.folder / "tree")
    assert (tmp_path / "back" / "a" / "é b").read_bytes() == b"\0\xff"
    assert os.access(tmp_path / "back" / "run", os.X_OK)
    assert os.readlink(tmp_path / "back" / "link") == "a/é b"
    assert not [p for p in box._sandbox.folder.iterdir() if p.name.startswith(".oe")]
    with pytest.raises(FileError, match="exists already"):
        await box.download("tree", tmp_path / "back")


async def test_what_cannot_be_copied(
    running: Callable[..., Any], tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    """Pipes, sockets and unreadable files fail before anything moves, or are left out with a warning.

    Scenario: G06
    Mutation: pack without looking at the kinds of files first
    """
    source = tmp_path / "source"
    source.mkdir()
    (source / "good").write_bytes(b"x")
    os.mkfifo(source / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(source)  # the name of a socket may not be long
    listener.bind("sock")
    listener.close()
    box = running()
    with pytest.raises(FileError, match="pipe: a pipe; sock: a socket"):
        await box.upload(source, "tree")
    assert list(box._sandbox.folder.iterdir()) == []
    await box.upload(source, "tree", on_bad="skip")
    assert names(box._sandbox.folder / "tree") == ["good"]
    assert "pipe: a pipe" in caplog.text


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without permission is found before anything moves (root reads all, so the answer is faked).

    Scenario: G06
    Mutation: leave the question whether a file is readable to the moment it is read
    """
    (tmp_path / "shut").write_bytes(b"x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileError, match="shut: not readable"):
        pack(tmp_path, LIMITS)
    archive = pack(tmp_path, Limits(100, 10, skip=True))
    assert archive.skipped == ["shut: not readable"]
    archive.close()


# ------------------------------------------------------------------------------------------- hostile archives


def archive(*entries: tuple[str, dict[str, Any], bytes]) -> io.BytesIO:
    """A tar with exactly these entries."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, fields, data in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            for key, value in fields.items():
                setattr(entry, key, value)
            tar.addfile(entry, io.BytesIO(data))
    return out


SYM, HARD = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}
HOSTILE = {
    "absolute": archive(("/tmp/evil", {}, b"x")),
    "dots": archive(("a/../../evil", {}, b"x")),
    "absolute link": archive(("link", {**SYM, "linkname": "/etc/passwd"}, b"")),
    "link out": archive(("a/link", {**SYM, "linkname": "../../x"}, b"")),
    "link through link": archive(
        ("x/y/up", {**SYM, "linkname": "../.."}, b""), ("out", {**SYM, "linkname": "x/y/up/.."}, b"")
    ),
    "file through link": archive(("d", {**SYM, "linkname": "."}, b""), ("d/evil", {}, b"x")),
    "folder over link": archive(
        ("d", {**SYM, "linkname": "."}, b""), ("d", {"type": tarfile.DIRTYPE}, b""), ("d/f", {}, b"x")
    ),
    "hard link out": archive(("hard", {**HARD, "linkname": "/etc/passwd"}, b"")),
    "hard link up": archive(("hard", {**HARD, "linkname": "../x"}, b"")),
    "hard link to link": archive(("l", {**SYM, "linkname": "f"}, b""), ("h", {**HARD, "linkname": "l"}, b"")),
    "device": archive(("dev", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b"")),
    "pipe": archive(("pipe", {"type": tarfile.FIFOTYPE}, b"")),
    "twice": archive(("f", {}, b"1"), ("f", {}, b"2")),
    "link twice": archive(("f", {}, b"1"), ("f", {**SYM, "linkname": "g"}, b"")),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_archive(tmp_path: Path, name: str) -> None:
    """What must not come out is refused; left out on request; nothing is ever written outside."""
    for skip in (False, True):
        target = tmp_path / f"in-{skip}" / "target"
        limits = Limits(1000, 100, skip=skip)
        if skip:
            assert unpack(HOSTILE[name], target, limits)
        else:
            with pytest.raises(FileError):
                unpack(HOSTILE[name], target, limits)
        assert names(tmp_path / f"in-{skip}")[:1] == ["target"]
        assert not any("evil" in path for path in names(tmp_path))
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target.resolve())


@pytest.mark.parametrize(
    ("kind", "count", "size"), [(b"x", 3000, 0), (b"L", 3000, 5), (b"x", 1, 1 << 28), (b"K", 1, 1 << 28)]
)
def test_headers_of_headers_are_bounded(tmp_path: Path, kind: bytes, count: int, size: int) -> None:
    """Headers about the entry after them, thousands in a row or huge, are refused before they are read.

    Mutation: let tarfile read them with its own TarInfo
    """
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    block = header.tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(FileError, match="headers are too"):
        unpack(io.BytesIO((block + bytes(-(-min(size, 512) // 512) * 512)) * count), tmp_path / "a", LIMITS)


def test_archive_limits(tmp_path: Path) -> None:
    """Bytes and entries are bounded while reading; a truncated archive is an error; setuid does not survive."""
    many = archive(*((f"f{n}", {}, b"") for n in range(20)))
    with pytest.raises(FileError, match="more than 10 files"):
        unpack(many, tmp_path / "a", Limits(1000, 10))
    with pytest.raises(FileError, match="more than 10 bytes"):
        unpack(archive(("f", {}, b"x" * 11)), tmp_path / "b", Limits(10, 10))
    whole = archive(("f", {}, b"x" * 5000)).getvalue()
    with pytest.raises(FileError):
        unpack(io.BytesIO(whole[:3000]), tmp_path / "c", LIMITS)
    with pytest.raises(FileError):
        unpack(io.BytesIO(b"not a tar" * 100), tmp_path / "d", LIMITS)
    unpack(archive(("f", {"mode": 0o6755}, b"x")), tmp_path / "e", LIMITS)
    assert (tmp_path / "e" / "f").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("name", "link", "fine"),
    [
        ("a", "b", True),
        ("d/a", "../b", True),
        ("d/a", "..", True),
        ("a", "..", False),
        ("d/a", "../..", False),
        ("a", "/b", False),
        ("a", "", False),
        ("a", "b/../c", False),
        ("a", "./b", True),
    ],
)
def test_links_that_stay(name: str, link: str, fine: bool) -> None:
    """A link stays inside when it climbs only at its beginning and no higher than the tree."""
    assert link_inside(PurePosixPath(name), link) is fine


async def test_hostile_listing(running: Callable[..., Any], tools: Callable[..., str], tmp_path: Path) -> None:
    """A sandbox without tar that lists names outside the tree gets nothing written there."""
    box = running(path=tools(without=("tar",)))
    (box._sandbox.folder / "tree").mkdir()
    original = box._sandbox.exec_raw

    async def lying(argv: Any, *, on_output: Any, **kw: Any) -> Any:
        def sink(name: Any, data: bytes) -> None:
            on_output(name, b"f./../../evil\0\0" + data if name == "stdout" and "readlink" in "".join(argv) else data)

        return await original(argv, on_output=sink, **kw)

    box._sandbox.exec_raw = lying
    with pytest.raises(FileError, match="leads out"):
        await box.download("tree", tmp_path / "back")
    assert not any(name.endswith("evil") or name == "back" for name in names(tmp_path))


async def test_download_is_whole_or_nothing(running: Callable[..., Any], tmp_path: Path) -> None:
    """A cancelled download leaves nothing here."""
    box = running()
    await box.write("tree/file", b"x" * 1000)
    task = asyncio.ensure_future(box.download("tree", tmp_path / "back"))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})
    assert not [name for name in names(tmp_path) if name.startswith("back.")]
