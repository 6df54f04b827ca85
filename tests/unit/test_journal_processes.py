"""The journal among processes: who is alive, who is not, and nobody in anybody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import _runs
from openenv_sandbox.errors import JournalError
from openenv_sandbox.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

ROWS = """
import asyncio, sys
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import SandboxRef
async def main():
    journal = await Journal.open()
    keys = [journal.new_key() for _ in range(20)]
    for key in keys:
        await journal.intent(key, "p", "s", 0.0)
        await journal.created(SandboxRef("p", "s", "id-" + key, key, {"t": "x"}))
    for key in keys[:10]:
        await journal.close(key)
asyncio.run(main())
"""

OWNER = """
import asyncio, os, sys, time
from openenv_sandbox.journal import Journal
async def main():
    journal = await Journal.open()
    await journal.intent(journal.new_key(), "p", "s", 0.0)
    return journal
journal = asyncio.run(main())
{then}
print(journal.run_id, flush=True)
sys.stdin.read()
"""

FORK = """
ready, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(told, b"x")
    time.sleep(600)
os.read(ready, 1)
print(child, flush=True)
"""


def owner(then: str = "") -> tuple[subprocess.Popen[str], list[str]]:
    """A process with one row, alive until its stdin closes; the lines it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [process.stdout.readline().strip() for _ in range(2 if FORK in then else 1)]


def crowd(count: int) -> list[int]:
    processes = [subprocess.Popen([sys.executable, "-c", ROWS]) for _ in range(count)]
    return [process.wait(timeout=300) for process in processes]


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


async def test_twenty_processes_write_twenty_rows_each() -> None:
    assert crowd(20) == [0] * 20
    journal = await Journal.open()
    rows = await journal.rows()
    assert len(rows) == 200
    assert len({row.run for row in rows}) == 20
    assert {(row.state, row.alive) for row in rows} == {("created", False)}
    assert journal.folder is not None
    assert len(list((journal.folder / "refs").iterdir())) == 200
    await journal.aclose()


async def test_an_owner_lives_until_it_is_killed() -> None:
    """kill -9 of the owner is seen at once, and the row it wrote before anything else is there.

    Scenario: A04
    Mutation: _runs._lock takes no lock, or Store.intent does not commit
    """
    process, (run,) = owner()
    journal = await Journal.open()
    try:
        assert await journal.owner_alive(run)
        assert [row.alive for row in await journal.rows(run=run)] == [True]
    finally:
        end(process)
    assert not await journal.owner_alive(run)
    assert [(row.state, row.alive) for row in await journal.rows()] == [("intent", False)]
    await journal.aclose()


async def test_a_forked_child_does_not_keep_its_parent_alive() -> None:
    """The child drops the lock, so that a killed parent counts as dead while the child lives on.

    Scenario: A04
    Mutation: journal._after_fork_in_child does not call drop_in_child
    """
    process, (child, run) = owner(FORK)
    journal = await Journal.open()
    try:
        assert await journal.owner_alive(run)
        end(process)
        os.kill(int(child), 0)
        assert journal.folder is not None
        assert not _runs.alive(journal.folder / "runs", run)
    finally:
        os.kill(int(child), signal.SIGKILL)
    await journal.aclose()


async def test_a_fork_that_skips_the_hook_is_seen_by_the_second_witness() -> None:
    skip = "import openenv_sandbox.journal as j\nj._shared.clear()\n" + FORK
    process, (child, run) = owner(skip)
    journal = await Journal.open()
    try:
        assert [row.alive for row in await journal.rows()] == [True]
        end(process)
        assert journal.folder is not None
        assert _runs.alive(journal.folder / "runs", run)  # the lock alone is wrong
        assert [row.alive for row in await journal.rows()] == [False]
    finally:
        os.kill(int(child), signal.SIGKILL)
    await journal.aclose()


def test_a_child_that_launches_takes_a_run_of_its_own() -> None:
    script = """
import asyncio, os, sys
from openenv_sandbox.errors import JournalError
from openenv_sandbox.journal import Journal
mine = asyncio.run(Journal.open())
child = os.fork()
if child == 0:
    async def run():
        try:
            await mine.rows()
        except JournalError as error:
            assert "process that opened it" in str(error)
        own = await Journal.open()
        await own.intent(own.new_key(), "p", "s", 0.0)
        assert own.run_id != mine.run_id and await own.owner_alive(mine.run_id)
    try:
        asyncio.run(run())
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
_, status = os.waitpid(child, 0)
async def check():
    (row,) = await mine.rows()
    assert not row.alive and row.run != mine.run_id
asyncio.run(check())
sys.exit(os.waitstatus_to_exitcode(status))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_witnesses_of_another_boot_machine_or_namespace_decide_nothing() -> None:
    here = _runs.witness()
    where = here.rsplit(":", 2)[0]
    assert not _runs._witness_gone(here)
    assert _runs._witness_gone(f"{where}:{os.getpid()}:1")
    assert not _runs._witness_gone(f"other:{os.getpid()}:1")
    assert not _runs._witness_gone("")


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert _runs._start_time(child.pid) == ""
    child.wait()


def test_the_lock_file_of_a_living_run_is_never_seen_unlocked(tmp_path: Path) -> None:
    lock = _runs.RunLock(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{lock.run_id}.lock"]
    _runs.sweep(tmp_path, keep=set())
    assert lock.path.exists()
    lock.release()
    _runs.sweep(tmp_path, keep={lock.run_id})
    assert lock.path.exists()
    _runs.sweep(tmp_path, keep=set())
    assert not lock.path.exists()


async def test_the_journal_error_of_a_child_is_a_sentence() -> None:
    journal = await Journal.open()
    journal._pid = -1
    with pytest.raises(JournalError, match="belongs to the process that opened it"):
        await journal.rows()
    journal._pid = os.getpid()
    await journal.aclose()
