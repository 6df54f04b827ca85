"""A process that is killed leaves containers; whoever comes next removes them, and only them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import _dockerhost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.docker.docks import Docker
    from tests.docker.proxy import DaemonProxy

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

URL = _dockerhost.resolve().url

HOLDER = """
import asyncio, sys
from openenv_sandbox.launcher import sandbox

async def main():
    image, number, run = sys.argv[1:]
    handles = [
        sandbox(image, provider="docker", command=["sleep", "600"], labels={"test": run}) for _ in range(int(number))
    ]
    kept = await asyncio.gather(*handles)
    print("holding", *(box.ref.id for box in kept), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def environment(state: Path, url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENENV_")}
    return {**kept, "OPENENV_STATE_DIR": str(state), "DOCKER_HOST": url, "OPENENV_PROVIDER": "docker"}


def hold(dock: Docker, number: int, state: Path, url: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", HOLDER, dock.prepared.ref, str(number), dock.run]
    return subprocess.Popen(argv, env=environment(state, url), stdout=subprocess.PIPE, text=True)


def there(dock: Docker) -> set[str]:
    # Sparse: without, each one is inspected, which fails when it is removed meanwhile.
    found = dock.engine.containers.list(all=True, sparse=True, filters={"label": f"test={dock.run}"})
    return {str(container.id) for container in found}


def gc(state: Path, url: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "openenv_sandbox.cli", "gc", "--provider", "docker"]
    return subprocess.run(argv, env=environment(state, url), capture_output=True, text=True, timeout=120)


def said(process: subprocess.Popen[str]) -> set[str]:
    assert process.stdout is not None
    return set(process.stdout.readline().split()[1:])


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def until(probe: Callable[[], bool]) -> None:
    """Wait for the daemon; the bound tells a hang from slowness."""
    deadline = time.monotonic() + 120
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def until_gone(dock: Docker, doomed: set[str]) -> None:
    until(lambda: not there(dock) & doomed)


@pytest.fixture
def cleaned(dock: Docker) -> Iterator[None]:
    yield
    for container in dock.engine.containers.list(all=True, filters={"label": f"test={dock.run}"}):
        container.remove(force=True, v=True)


@contextlib.asynccontextmanager
async def two_owners(dock: Docker, first: Path, second: Path) -> AsyncIterator[tuple[set[str], set[str]]]:
    """Five sandboxes of an owner that is killed, and five of one in another state folder that lives on."""
    dead, alive = hold(dock, 5, first, URL), hold(dock, 5, second, URL)
    try:
        doomed, kept = await asyncio.gather(asyncio.to_thread(said, dead), asyncio.to_thread(said, alive))
        assert len(doomed) == len(kept) == 5
        end(dead)
        assert await asyncio.to_thread(there, dock) == doomed | kept
        yield doomed, kept
    finally:
        end(dead)
        end(alive)
    done = await asyncio.to_thread(gc, second, URL)
    assert await asyncio.to_thread(there, dock) == set(), done.stdout + done.stderr


@pytest.mark.usefixtures("cleaned")
async def test_gc_after_a_kill(dock: Docker, tmp_path: Path) -> None:
    """kill -9 of a process with five sandboxes: gc removes those, not the five of a live owner elsewhere.

    Scenario: A04
    Mutation: whatever carries our labels and is in no journal of ours is removed, whichever install made it
    """
    first, second = tmp_path / "first", tmp_path / "second"
    async with two_owners(dock, first, second) as (doomed, kept):
        done = await asyncio.to_thread(gc, first, URL)
        assert done.returncode == 0, done.stdout + done.stderr
        assert await asyncio.to_thread(there, dock) == kept
        assert all(identifier[:12] in done.stdout for identifier in doomed), done.stdout


@pytest.mark.usefixtures("cleaned")
async def test_the_next_launch_after_a_kill(dock: Docker, tmp_path: Path) -> None:
    """kill -9 of a process with five sandboxes: the next launch of its state folder removes those, and only them.

    Scenario: A04
    Mutation: a launch does not look for what dead owners left
    """
    first, second = tmp_path / "first", tmp_path / "second"
    async with two_owners(dock, first, second) as (doomed, kept):
        following = hold(dock, 1, first, URL)
        try:
            own = await asyncio.to_thread(said, following)
            assert len(own) == 1
            await asyncio.to_thread(until_gone, dock, doomed)
            assert await asyncio.to_thread(there, dock) == kept | own
        finally:
            end(following)
        await asyncio.to_thread(gc, first, URL)
        assert await asyncio.to_thread(there, dock) == kept


@pytest.mark.usefixtures("cleaned")
async def test_kill_before_the_reply_is_read(dock: Docker, proxy: DaemonProxy, tmp_path: Path) -> None:
    """kill -9 while the daemon's answer to the create is under way: the container is found by its key and removed.

    Scenario: A04
    Mutation: the journal is written after the create
    """
    state = tmp_path / "state"
    fault = proxy.faults.add("create", when="after", hang=True)
    process = hold(dock, 1, state, proxy.url)
    try:
        await fault.reached(60)
    finally:
        end(process)
    fault.release()
    assert len(await asyncio.to_thread(there, dock)) == 1, "the daemon made it, and nobody was told"
    done = await asyncio.to_thread(gc, state, proxy.url)
    assert await asyncio.to_thread(there, dock) == set(), done.stdout + done.stderr


@pytest.mark.usefixtures("cleaned")
async def test_a_create_that_appears_late(dock: Docker, proxy: DaemonProxy, tmp_path: Path) -> None:
    """A request that is still under way when gc looks: gc keeps its row, and removes what comes of it the next time.

    Scenario: A04
    Mutation: a row without a sandbox is closed before its create has settled
    """
    state = tmp_path / "state"
    fault = proxy.faults.add("create", when="before", hang=True)
    process = hold(dock, 1, state, proxy.url)
    try:
        await fault.reached(60)
    finally:
        end(process)
    done = await asyncio.to_thread(gc, state, proxy.url)
    assert "may still appear" in done.stdout + done.stderr
    assert await asyncio.to_thread(there, dock) == set()
    fault.release()
    await asyncio.to_thread(until, lambda: len(there(dock)) == 1)
    done = await asyncio.to_thread(gc, state, proxy.url)
    assert await asyncio.to_thread(there, dock) == set(), done.stdout + done.stderr
