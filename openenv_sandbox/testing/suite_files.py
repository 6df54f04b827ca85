"""Contract suite: files and trees."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.errors import FileError
from openenv_sandbox.testing.case import ContractBase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from openenv_sandbox.running import RunningSandbox


async def folder_of(running: RunningSandbox) -> str:
    """A fresh folder inside."""
    return (await running.exec("mktemp -d", check=True)).text().strip()


class FilesContract(ContractBase):
    """`read`, `write`, `upload`, `download`."""

    @pytest.mark.parametrize("size", [0, 1, 5_000_000])
    async def test_file_round_trip(self, running: RunningSandbox, size: int) -> None:
        """Bytes come back as they went, whatever they are and whatever the name is."""
        data = (bytes(range(256)) * (size // 256 + 1))[:size]
        path = await folder_of(running) + "/a b/'é'.bin"
        await running.write(path, data)
        back = await running.read(path)
        assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()

    async def test_file_mode_and_owner(self, running: RunningSandbox) -> None:
        """The mode is set, and the user that commands run as owns the file."""
        path = await folder_of(running) + "/tool"
        await running.write(path, b"#!/bin/sh\necho ran\n", mode=0o750)
        result = await running.exec(["/bin/sh", "-c", '"$0" && ls -ln "$0" && id -u', path])
        ran, listing, uid = result.text().splitlines()
        assert (ran, listing[:10], listing.split()[2]) == ("ran", "-rwxr-x---", uid)

    async def test_file_replaced_whole(self, running: RunningSandbox) -> None:
        """Writing replaces; a link is replaced, not followed; nothing partial stays."""
        folder = await folder_of(running)
        await running.exec('echo keep >"$D/target"; ln -s target "$D/link"; echo old >"$D/file"', env={"D": folder})
        await running.write(f"{folder}/link", "new")
        await running.write(f"{folder}/file", "new")
        assert await running.read(f"{folder}/target") == b"keep\n"
        assert await running.read(f"{folder}/link") == await running.read(f"{folder}/file") == b"new"
        assert (await running.exec(["ls", folder])).text().split() == ["file", "link", "target"]

    async def test_file_errors(self, running: RunningSandbox) -> None:
        """What cannot be read or written is a FileError that says why."""
        folder = await folder_of(running)
        for path, why in ((f"{folder}/none", "no such file"), (folder, "directory"), ("/dev/null", "regular")):
            with pytest.raises(FileError, match=why):
                await running.read(path)
        with pytest.raises(FileError, match="directory"):
            await running.write(folder, b"x")
        with pytest.raises(FileError):
            await running.write("/dev/null/x", b"x")

    async def test_file_limit_first(self, running: RunningSandbox) -> None:
        """A file over the limit is refused by its size, before it is read."""
        path = await folder_of(running) + "/big"
        await running.exec(["dd", "if=/dev/zero", f"of={path}", "bs=1", "count=0", "seek=150000000"], check=True)
        moved: list[int] = []
        original = running._sandbox.exec_raw

        async def counting(*args: object, on_output: object, **kw: object) -> object:
            def sink(name: str, data: bytes) -> None:
                moved.append(len(data))
                on_output(name, data)  # type: ignore[operator]

            return await original(*args, on_output=sink, **kw)  # type: ignore[arg-type]

        running._sandbox.exec_raw = counting  # type: ignore[method-assign, assignment]
        try:
            with pytest.raises(FileError, match="150000000"):
                await running.read(path)
        finally:
            del running._sandbox.exec_raw
        assert sum(moved) < 10_000
        with pytest.raises(FileError, match="over the limit"):
            await running.write(path, b"x" * 100, max_bytes=99)

    async def test_file_stream(self, running: RunningSandbox) -> None:
        """Streams move a file in pieces, in both directions."""
        path = await folder_of(running) + "/stream"

        async def source() -> AsyncIterator[bytes]:
            for n in range(100):
                yield bytes([n]) * 100_003

        await running.write(path, source())
        digest, largest = hashlib.sha256(), 0
        async for piece in running.read_stream(path):
            digest.update(piece)
            largest = max(largest, len(piece))
        assert digest.digest() == hashlib.sha256(b"".join(bytes([n]) * 100_003 for n in range(100))).digest()
        assert largest <= 8 << 20

    async def test_tree_round_trip(self, running: RunningSandbox, tmp_path: Path) -> None:
        """A tree goes in and comes out with names, modes, empty folders and links."""
        source = tmp_path / "source"
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "sub" / "é b.bin").write_bytes(bytes(range(256)))
        (source / "run.sh").write_text("#!/bin/sh\n")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("sub/é b.bin")
        inside = await folder_of(running) + "/tree"
        await running.upload(source, inside)
        await running.download(inside, tmp_path / "back")
        back = tmp_path / "back"
        assert sorted(str(p.relative_to(back)) for p in back.rglob("*")) == sorted(
            str(p.relative_to(source)) for p in source.rglob("*")
        )
        assert (back / "sub" / "é b.bin").read_bytes() == bytes(range(256))
        assert os.access(back / "run.sh", os.X_OK)
        assert os.readlink(back / "link") == "sub/é b.bin"

    async def test_tree_single_file(self, running: RunningSandbox, tmp_path: Path) -> None:
        """A single file goes in and comes out."""
        (tmp_path / "one").write_bytes(b"\0one")
        inside = await folder_of(running) + "/deep/one"
        await running.upload(tmp_path / "one", inside)
        await running.download(inside, tmp_path / "two")
        assert (tmp_path / "two").read_bytes() == b"\0one"

    async def test_tree_links_out(self, running: RunningSandbox, tmp_path: Path) -> None:
        """A link that leads out of the downloaded tree is refused, or left out; nothing is written through it."""
        folder = await folder_of(running)
        await running.exec('cd "$D" && ln -s /etc out && ln -s ../.. up && echo x >file', env={"D": folder}, check=True)
        with pytest.raises(FileError, match="out"):
            await running.download(folder, tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
        await running.download(folder, tmp_path / "skipped", on_bad="skip")
        assert sorted(p.name for p in (tmp_path / "skipped").iterdir()) == ["file"]

    async def test_tree_limits(self, running: RunningSandbox, tmp_path: Path) -> None:
        """Size and number of files are bounded in both directions."""
        source = tmp_path / "many"
        source.mkdir()
        for n in range(12):
            (source / str(n)).write_bytes(b"x" * 100)
        inside = await folder_of(running) + "/many"
        with pytest.raises(FileError, match="10"):
            await running.upload(source, inside, max_files=10)
        with pytest.raises(FileError, match="1000"):
            await running.upload(source, inside, max_bytes=1000)
        await running.upload(source, inside)
        with pytest.raises(FileError, match="10"):
            await running.download(inside, tmp_path / "a", max_files=10)
        with pytest.raises(FileError, match="1000"):
            await running.download(inside, tmp_path / "b", max_bytes=1000)

    async def test_tree_special_files(self, running: RunningSandbox, tmp_path: Path) -> None:
        """A pipe in a tree is refused before anything moves, or left out with a warning."""
        source = tmp_path / "special"
        source.mkdir()
        (source / "file").write_bytes(b"x")
        os.mkfifo(source / "pipe")
        inside = await folder_of(running) + "/special"
        with pytest.raises(FileError, match="pipe"):
            await running.upload(source, inside)
        assert (await running.exec(["test", "-e", inside])).exit_code == 1
        await running.upload(source, inside, on_bad="skip")
        assert (await running.exec(["ls", inside])).text() == "file\n"
