from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import redact
from openenv_sandbox.errors import JournalError
from openenv_sandbox.journal import Journal, NullJournal, open_journal
from openenv_sandbox.provider import SandboxRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["disk", "memory"])
async def journal(request: pytest.FixtureRequest) -> AsyncIterator[Journal]:
    opened = await open_journal("on" if request.param == "disk" else "off")
    yield opened
    await opened.aclose()


@pytest.fixture
async def disk() -> AsyncIterator[Journal]:
    opened = await Journal.open()
    yield opened
    await opened.aclose()


async def test_a_row_goes_from_intention_to_nothing(journal: Journal) -> None:
    key, settle = journal.new_key(), time.time() + 180
    await journal.intent(key, "docker", "unix:///x", settle, "echo", expires_at=settle + 1)
    (row,) = await journal.rows()
    assert (row.key, row.state, row.ref, row.run, row.alive) == (key, "intent", None, journal.run_id, True)
    assert (row.settle_until, row.expires_at, row.note) == (settle, settle + 1, "echo")
    ref = SandboxRef("docker", "unix:///x", "abc", key)
    await journal.created(ref)
    (row,) = await journal.rows(state="created")
    assert row.ref == ref
    await journal.extended(key, settle + 9)
    await journal.pending_delete(key)
    (row,) = await journal.rows(provider="docker", scope="unix:///x", key=key)
    assert (row.state, row.expires_at) == ("pending_delete", settle + 9)
    assert await journal.rows(provider="podman") == []
    await journal.close(key)
    await journal.close(key)
    assert await journal.rows() == []


async def test_a_second_intent_moves_the_time_to_settle(journal: Journal) -> None:
    key = journal.new_key()
    await journal.intent(key, "p", "s", 10.0)
    await journal.intent(key, "p", "s", 20.0)
    assert [(row.state, row.settle_until) for row in await journal.rows()] == [("intent", 20.0)]


async def test_attaching_takes_a_row_over_and_detaching_gives_it_up(journal: Journal) -> None:
    ref = SandboxRef("docker", "s", "abc", "oe-00000000-000000000000", {"token": "sekret"})
    await journal.created(ref, expires_at=5.0)
    assert (await journal.full_ref(ref.without_state())).state == {"token": "sekret"}
    await journal.detached(ref.key or "")
    (row,) = await journal.rows()
    assert (row.state, row.run, row.expires_at) == ("detached", journal.run_id, 5.0)
    with pytest.raises(JournalError, match="no key of ours"):
        await journal.created(SandboxRef("docker", "s", "abc"))


async def test_keys_fit_every_backend(journal: Journal) -> None:
    keys = {journal.new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(rf"oe-{journal.run_id}-[0-9a-f]{{12}}", key) for key in keys)
    assert re.fullmatch(r"[0-9a-f]{8}", journal.run_id)


async def test_no_secret_is_in_the_journal_and_its_side_file_is_private(disk: Journal) -> None:
    """What reattaching needs lies in a file that only the user can read, and goes with the row.

    Scenario: M01
    Mutation: created() writes ref.state into the row, or _write_private opens with 0644
    """
    redact.register("sekret-canary")
    assert disk.folder is not None
    key = disk.new_key()
    await disk.intent(key, "docker", "s", 0.0, "note with sekret-canary")
    await disk.created(SandboxRef("docker", "s", "abc", key, {"token": "sekret-canary"}))
    redact.forget("sekret-canary")
    side = disk.folder / "refs" / f"{key}.json"
    holders = [path for path in disk.folder.rglob("*") if path.is_file() and b"sekret-canary" in path.read_bytes()]
    assert holders == [side]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in disk.folder.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (disk.folder / "refs", disk.folder / "runs")} == {0o700}
    await disk.close(key)
    assert not side.exists()


async def test_a_write_is_on_disk_when_it_returns(disk: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings that make it so: full sync with the write-ahead log."""
    from openenv_sandbox._store import Store

    store = disk._store
    assert isinstance(store, Store)
    wanted = [("journal_mode", "wal"), ("synchronous", 2)]
    assert (
        await disk._call(lambda _: [(n, store._db.execute(f"PRAGMA {n}").fetchone()[0]) for n, _ in wanted]) == wanted
    )


async def test_the_loop_never_waits_for_the_disk(no_blocking: None) -> None:
    journal = await Journal.open()
    keys = [journal.new_key() for _ in range(20)]
    await asyncio.gather(*(journal.intent(key, "p", "s", 0.0) for key in keys))
    assert len(await journal.rows()) == 20
    await asyncio.gather(*(journal.close(key) for key in keys))
    await journal.aclose()


async def test_one_journal_for_each_process_and_folder(tmp_path: Path) -> None:
    first, second = await asyncio.gather(Journal.open(tmp_path), Journal.open(str(tmp_path)))
    other = await Journal.open(tmp_path / "other")
    assert first is second
    assert (first.install_id == other.install_id, first.run_id == other.run_id) == (False, False)
    await first.aclose()
    await first.aclose()
    with pytest.raises(JournalError, match="closed"):
        await first.rows()
    again = await Journal.open(tmp_path)
    assert (again.install_id, again.run_id == first.run_id) == (first.install_id, False)
    await again.aclose()
    await other.aclose()


async def test_use_from_several_loops(disk: Journal) -> None:
    key = disk.new_key()
    await asyncio.to_thread(lambda: asyncio.run(disk.intent(key, "p", "s", 0.0)))
    assert [row.key for row in await disk.rows()] == [key]


async def test_a_cancelled_call_still_happens_and_says_nothing(disk: Journal) -> None:
    key = disk.new_key()
    for job in (disk.intent(key, "p", "s", 0.0), disk.intent("no key at all", "p", "s", 0.0)):
        task = asyncio.create_task(job)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [row.key for row in await disk.rows()] == [key]


async def test_a_disk_that_does_not_answer_is_an_error(disk: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    stuck = threading.Event()
    monkeypatch.setattr("openenv_sandbox.journal.CALL_S", 0.01)
    with pytest.raises(JournalError, match="did not answer within"):
        await disk._call(lambda store: stuck.wait(20))
    monkeypatch.undo()
    stuck.set()
    assert await disk.rows() == []


async def test_a_dead_run_leaves_its_row_and_one_without_rows_leaves_nothing(tmp_path: Path) -> None:
    left = await Journal.open(tmp_path)
    await left.intent(left.new_key(), "p", "s", 0.0)
    await left.aclose()
    idle = await Journal.open(tmp_path)
    assert [row.alive for row in await idle.rows()] == [False]
    assert not await idle.owner_alive(left.run_id)
    assert await idle.owner_alive(idle.run_id)
    await idle.aclose()
    assert sorted(path.stem for path in (tmp_path / "runs").iterdir()) == [left.run_id]


@pytest.mark.parametrize("run", ["../x", "", "a/b", "*"])
async def test_a_run_from_a_label_cannot_name_other_files(disk: Journal, run: str) -> None:
    assert not await disk.owner_alive(run)


async def test_a_claim_is_exclusive_until_it_is_given_back(disk: Journal) -> None:
    key = disk.new_key()
    await disk.intent(key, "p", "s", 0.0)
    assert await disk.claim([key, "oe-none"], 60) == [key]
    assert await disk.claim([key], 60) == []
    await disk.unclaim([key])
    assert await disk.claim([key], 60) == [key]


async def test_leftover_side_files_are_removed_after_a_while(tmp_path: Path) -> None:
    first = await Journal.open(tmp_path)
    await first.aclose()
    old, young = tmp_path / "refs" / "oe-1.json", tmp_path / "refs" / "oe-2.json"
    for path in (old, young):
        path.write_text("{}")
    os.utime(old, (0, 0))
    second = await Journal.open(tmp_path)
    await second.aclose()
    assert (old.exists(), young.exists()) == (False, True)


def _below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


async def test_off_keeps_nothing_on_disk(state_dir: Path) -> None:
    before = _below(state_dir)
    journal = await open_journal("off")
    assert isinstance(journal, NullJournal)
    await journal.intent(journal.new_key(), "p", "s", 0.0)
    assert len(await journal.claim([row.key for row in await journal.rows()], 1.0)) == 1
    assert not await journal.owner_alive("other")
    await journal.aclose()
    assert _below(state_dir) == before
