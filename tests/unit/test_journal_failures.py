"""A journal that cannot be opened or trusted is a sentence, and nothing is created without it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from openenv_sandbox import _paths
from openenv_sandbox._store import SCHEMA, Store
from openenv_sandbox.errors import ConfigError, JournalError
from openenv_sandbox.journal import Journal, open_journal
from openenv_sandbox.provider import SandboxRef

pytestmark = pytest.mark.anyio


async def test_a_damaged_file_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalError, match=r"journal\.db is damaged") as caught:
        await Journal.open(tmp_path)
    assert "move it away" in str(caught.value)
    assert (tmp_path / "journal.db").read_bytes().startswith(b"this is no database")
    (tmp_path / "journal.db").rename(tmp_path / "away")
    journal = await Journal.open(tmp_path)  # repaired: the failure was not remembered
    await journal.aclose()


async def test_damage_inside_is_found_before_anything_is_written(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path)
    for _ in range(200):
        await journal.intent(journal.new_key(), "p", "s", 0.0, "x" * 200)
    await journal.aclose()
    data = bytearray((tmp_path / "journal.db").read_bytes())
    data[4096 * 3 : 4096 * 4] = os.urandom(4096)
    (tmp_path / "journal.db").write_bytes(data)
    with pytest.raises(JournalError, match="is damaged"):
        await Journal.open(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "null", '"text"', "{", "\xff"])
async def test_a_damaged_side_file_is_an_empty_one(tmp_path: Path, text: str) -> None:
    """What reattaching needed is lost; the sandbox can still be deleted.

    Scenario: A04
    Mutation: state_of makes a dict of whatever JSON it finds
    """
    journal = await Journal.open(tmp_path)
    ref = SandboxRef("p", "s", "id", journal.new_key(), {"token": "x"})
    await journal.created(ref)
    (tmp_path / "refs" / f"{ref.key}.json").write_text(text, encoding="latin-1")
    assert await journal.full_ref(ref.without_state()) == ref.without_state()
    await journal.aclose()


async def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path)
    await journal.aclose()
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    with pytest.raises(JournalError, match=f"newer openenv .format {SCHEMA + 1}"):
        await Journal.open(tmp_path)


async def _fill(journal: Journal) -> None:
    for _ in range(1000):
        await journal.intent(journal.new_key(), "p", "s", 0.0, "x" * 500)


async def test_a_full_disk_is_an_error_of_that_call(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path)
    store = journal._store
    assert isinstance(store, Store)
    await journal._call(lambda _: store._db.execute("PRAGMA max_page_count = 8"))
    with pytest.raises(JournalError, match="disk is full") as caught:
        await _fill(journal)
    assert "OPENENV_STATE_DIR" in str(caught.value)
    kept = await journal.rows()
    assert kept  # what was written before stays
    await journal.close(kept[0].key)
    assert len(await journal.rows()) == len(kept) - 1
    await journal.aclose()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="becomes another user")
def test_a_folder_without_permission_is_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o077 == 0:
            parent.chmod(0o711)
    script = f"""
import asyncio, os
from openenv_sandbox.errors import JournalError
from openenv_sandbox.journal import Journal
asyncio.run(Journal.open({str(tmp_path / "mine")!r}))
os.setuid(65534)
for name in ("sub", "mine"):
    try:
        asyncio.run(Journal({str(tmp_path)!r} and __import__("pathlib").Path({str(tmp_path)!r}) / name)._call(id))
    except JournalError as error:
        print(str(error).splitlines()[0])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.stdout.splitlines() == [
        f"the state folder {tmp_path / 'sub'} cannot be opened: Permission denied",
        f"the state folder {tmp_path / 'mine'} cannot be opened: Permission denied",
    ], run.stderr


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="gives a folder to another user")
async def test_a_folder_of_another_user_is_refused_even_to_root(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(JournalError, match="belongs to user 65534, this process runs as 0"):
        await Journal.open(tmp_path)


async def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(JournalError, match="cannot be opened"):
        await Journal.open(tmp_path / "state")


async def test_a_damaged_install_id_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "install-id").write_text("me@my-host\n")
    with pytest.raises(JournalError, match="install-id is damaged"):
        await Journal.open(tmp_path)


async def test_a_network_file_system_needs_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paths, "file_system", lambda _: "nfs4")
    monkeypatch.setenv("OPENENV_STATE_DIR", str(tmp_path))
    with pytest.raises(JournalError, match=r"network file system \(nfs4\)") as caught:
        await open_journal()
    assert "journal = network" in str(caught.value)
    journal = await open_journal("network")
    store = journal._store
    assert isinstance(store, Store)
    assert await journal._call(lambda _: store._db.execute("PRAGMA journal_mode").fetchone()) == ("delete",)
    await journal.aclose()


def test_the_mount_that_holds_a_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:1 / /home rw shared:1 - nfs4 server:/home rw\n"
        "3 2 8:2 / /home/me/my\\040disk rw - xfs /dev/sdb rw\n"
        "4 1 0:2 / /mnt rw - ext4 /dev/sdc rw\n"
        "5 1 0:3 / /mnt rw - fuse.sshfs x rw\n"
        "broken\n"
    )
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: real(table if "proc" in str(self) else self, *a, **k))
    found = {
        path: _paths.file_system(Path(path)) for path in ("/home/me", "/homestead", "/home/me/my disk/x", "/mnt/y")
    }
    assert found == {"/home/me": "nfs4", "/homestead": "ext4", "/home/me/my disk/x": "xfs", "/mnt/y": "fuse.sshfs"}


def test_the_state_folder_has_a_place_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENENV_STATE_DIR")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert _paths.state_dir() == Path("/home/me/.local/state/openenv")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/me")
    assert _paths.state_dir() == Path("/var/me/openenv")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert _paths.state_dir() == Path("/home/me/.local/state/openenv")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _paths.state_dir() == Path("/home/me/Library/Application Support/openenv")
    monkeypatch.setattr(Path, "home", lambda: Path("relative"))
    with pytest.raises(ConfigError, match="no home folder"):
        _paths.state_dir()
