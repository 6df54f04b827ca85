"""A process that is killed leaves containers; whoever comes next removes them, and only them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import _dockerhost
from tests.docker.proxy import DaemonProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.docker.docks import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

HOLDER = """
import asyncio, sys
from openenv_sandbox.launcher import sandbox

async def main():
    image, number, run = sys.argv[1:]
    handles = [
        sandbox(image, provider="docker", command=["sleep", "600"], labels={"test": run}) for _ in range(int(number))
    ]
    kept = [await handle for handle in handles]
    print("holding", *(box.ref.id for box in kept), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def environment(state: Path, url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENENV_")}
    return {**kept, "OPENENV_STATE_DIR": str(state), "DOCKER_HOST": url, "OPENENV_PROVIDER": "docker"}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[DaemonProxy]:
    target = _dockerhost.resolve().socket_path
    if target is None:
        pytest.skip("needs a daemon on a unix socket")
    with DaemonProxy(target, tmp_path / "d.sock") as found:
        yield found


def hold(dock: Docker, number: int, state: Path, url: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", HOLDER, dock.prepared.ref, str(number), dock.run]
    return subprocess.Popen(argv, env=environment(state, url), stdout=subprocess.PIPE, text=True)


def there(dock: Docker) -> set[str]:
    found = dock.engine.containers.list(all=True, filters={"label": f"test={dock.run}"})
    return {str(container.id) for container in found}


def gc(state: Path, url: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "openenv_sandbox.cli", "gc", "--provider", "docker"]
    return subprocess.run(argv, env=environment(state, url), capture_output=True, text=True, timeout=120)


def said(process: subprocess.Popen[str]) -> set[str]:
    assert process.stdout is not None
    return set(process.stdout.readline().split()[1:])


@pytest.fixture
def cleaned(dock: Docker) -> Iterator[None]:
    yield
    for container in dock.engine.containers.list(all=True, filters={"label": f"test={dock.run}"}):
        container.remove(force=True, v=True)


@pytest.mark.usefixtures("cleaned")
async def test_kill_while_holding(dock: Docker, tmp_path: Path) -> None:
    """kill -9 of a process with two sandboxes: gc removes those, not the two of a live owner in another state folder.

    Scenario: A04
    Mutation: the label oe-install is not compared before a delete
    """
    url = _dockerhost.resolve().url
    first, second = tmp_path / "first", tmp_path / "second"
    dead, alive = hold(dock, 2, first, url), hold(dock, 2, second, url)
    try:
        doomed, kept = await asyncio.gather(asyncio.to_thread(said, dead), asyncio.to_thread(said, alive))
        assert len(doomed) == len(kept) == 2
        dead.kill()
        dead.wait()
        assert there(dock) == doomed | kept
        done = await asyncio.to_thread(gc, first, url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert there(dock) == kept
    finally:
        for process in (dead, alive):
            process.kill()
            process.communicate()
    done = await asyncio.to_thread(gc, second, url)
    assert there(dock) == set(), done.stdout + done.stderr


@pytest.mark.usefixtures("cleaned")
async def test_kill_before_the_reply_is_read(dock: Docker, proxy: DaemonProxy, tmp_path: Path) -> None:
    """kill -9 while the daemon's answer to the create is under way: the container is found by its key and removed.

    Scenario: A04
    Mutation: the journal is written after the create
    """
    state = tmp_path / "state"
    proxy.hold(r"^POST \S*/containers/create")
    process = hold(dock, 1, state, proxy.url)
    try:
        assert await asyncio.to_thread(proxy.holding.wait, 60)
    finally:
        process.kill()
        process.communicate()
    proxy.release()
    assert len(there(dock)) == 1, "the daemon made it, and nobody was told"
    done = await asyncio.to_thread(gc, state, proxy.url)
    assert there(dock) == set(), done.stdout + done.stderr
