from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import launch, reaper
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing.fake import FakeCloud
from tests.unit.launch_harness import nothing_left, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

VICTIM = """
import asyncio, sys
from openenv_sandbox import launch, sandbox
from openenv_sandbox.testing.fake import FakeProvider
FakeProvider.address = sys.argv[1]
async def main():
    {body}
asyncio.run(main())
"""
HOLD = """held = await asyncio.gather(*(launch("fake-env:1", provider=FakeProvider).__aenter__() for _ in range({n})))
    print("up", flush=True)
    await asyncio.sleep(3600)"""
ONE = 'await launch("fake-env:1", provider=FakeProvider)'


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def _start(cloud: FakeCloud, body: str, state: Path | None = None) -> subprocess.Popen[str]:
    env = {**os.environ, **({"OPENENV_STATE_DIR": str(state)} if state else {})}
    return _python(VICTIM.format(body=body), cloud, env)


def _python(code: str, cloud: FakeCloud, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, cloud.address], env=env, text=True, stdout=pipe, stderr=pipe)


def _kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> tuple[str, str]:
    process.send_signal(number)
    return process.communicate(timeout=60)


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.strip() == "up", process.communicate(timeout=60)[1]


async def _gc(cloud: FakeCloud) -> reaper.ReapReport:
    provider = cloud.provider()()
    return await reaper.reap(provider, await Journal.open())


@pytest.mark.parametrize(
    ("point", "left"),
    [("intent durable", 0), ("request left", 1), ("reply on its way", 1)],
)
@pytest.mark.parametrize("by", ["gc", "next launch"])
async def test_kill_9_during_create(cloud: FakeCloud, tmp_path: Path, point: str, left: int, by: str) -> None:
    """Killed at each point of a create: gc, and likewise the next launch, leave nothing; another install's live on.

    Scenario: A02, A04
    Mutation: pipeline writes the intent after the create; reaper skips rows in state intent; or labels are not compared
    """
    other = _start(cloud, HOLD.format(n=2), tmp_path / "other")
    await asyncio.to_thread(_say, other)
    others = {box.id for box in cloud.live()}
    if point == "intent durable":
        rule = cloud.faults.add("prepare", when="before", hang=True)
    else:
        rule = cloud.faults.add("create", when="before" if point == "request left" else "after", hang=True)
    victim = _start(cloud, ONE)
    await rule.reached()
    _kill(victim)
    rows = await (await Journal.open()).rows()
    assert [(row.state, row.alive) for row in rows] == [("intent", False)]
    rule.release()

    async def settled() -> bool:
        return len(cloud.live()) == len(others) + left

    await until(settled)
    if by == "gc":
        await _gc(cloud)
    else:
        async with launch("fake-env:1", provider=cloud.provider()) as env:
            await env.reset()

    async def only_others() -> bool:
        return {box.id for box in cloud.live()} == others

    await until(only_others)
    _kill(other)
    cloud.boxes.clear()


async def test_kill_9_with_many_held(cloud: FakeCloud, tmp_path: Path) -> None:
    """Five of a killed process go; five of another state folder stay, although its labels are on the same account.

    Scenario: A01, A04
    Mutation: reaper deletes by label oe-key without the install id
    """
    victim, other = _start(cloud, HOLD.format(n=5)), _start(cloud, HOLD.format(n=5), tmp_path / "other")
    await asyncio.to_thread(_say, victim)
    await asyncio.to_thread(_say, other)
    install = (await Journal.open()).install_id
    mine = {box.id for box in cloud.live() if box.labels["oe-install"] == install}
    await _gc(cloud)
    assert len(cloud.live()) == 10
    _kill(victim)
    report = await _gc(cloud)
    assert {item.id for item in report.removed} == mine
    assert not mine & {box.id for box in cloud.live()}
    assert len(cloud.live()) == 5
    _kill(other)
    cloud.boxes.clear()


async def test_ctrl_c_deletes_what_is_held(cloud: FakeCloud) -> None:
    """The first Ctrl-C unwinds: five sandboxes go, and the exit code is that of an interrupt.

    Scenario: A02, A03
    Mutation: launcher._Handle.__aexit__ does not stop the sandbox when it is left by an exception
    """
    body = """async with launch("fake-env:1", provider=FakeProvider), launch("fake-env:1", provider=FakeProvider):
        print("up", flush=True)
        await asyncio.sleep(3600)"""
    process = _start(cloud, body)
    await asyncio.to_thread(_say, process)
    assert len(cloud.live()) == 2
    _, err = await asyncio.to_thread(_kill, process, signal.SIGINT)
    assert process.returncode in (130, -signal.SIGINT), err
    assert "never awaited" not in err
    await nothing_left(cloud)


async def test_ctrl_c_while_the_create_runs(cloud: FakeCloud) -> None:
    """The signal lands after the request left and before its reply.

    Scenario: A02
    Mutation: Creation._undo does not wait for the create
    """
    rule = cloud.faults.add("create", when="after", hang=True)
    process = _start(cloud, ONE)
    await rule.reached()
    process.send_signal(signal.SIGINT)
    rule.release()
    await asyncio.to_thread(process.communicate, timeout=60)
    await nothing_left(cloud)


EXITS = {
    "sys.exit in the loop": """client = await launch("fake-env:1", provider=FakeProvider)
    sys.exit(0)""",
    "an unhandled error": """client = await launch("fake-env:1", provider=FakeProvider)
    raise RuntimeError("boom")""",
    "a loop that ended": 'await launch("fake-env:1", provider=FakeProvider)',
    "a sandbox": 'await sandbox("fake-env:1", provider=FakeProvider)',
}


@pytest.mark.parametrize("how", EXITS)
async def test_exit_without_a_block(cloud: FakeCloud, how: str) -> None:
    """What nobody closed is deleted at exit, while modules are still there.

    Scenario: A03, A17
    Mutation: owner._register does not register the exit hook
    """
    process = _start(cloud, EXITS[how])
    _, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert "never awaited" not in err
    assert "ImportError" not in err
    assert cloud.count("create") == 1
    assert cloud.live() == []
    assert await (await Journal.open()).rows() == []


async def test_exit_without_a_block_after_blocking_use(cloud: FakeCloud) -> None:
    code = (
        "import sys\nfrom openenv_sandbox import launch, sandbox\n"
        "from openenv_sandbox.testing.fake import FakeProvider\n"
        "FakeProvider.address = sys.argv[1]\n"
        "env = launch('fake-env:1', provider=FakeProvider).sync()\nenv.reset()\n"
        "box = sandbox('fake-env:1', provider=FakeProvider).sync()\nsys.exit(3)\n"
    )
    process = _python(code, cloud)
    _, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 3, err
    assert cloud.count("create") == 2
    assert cloud.live() == []


async def test_exit_while_a_loop_runs_in_a_daemon_thread(cloud: FakeCloud) -> None:
    """The main thread ends while another one's loop still holds a sandbox: it is deleted by that loop.

    Scenario: A03
    Mutation: owner._at_exit leaves out owners whose loop runs
    """
    body = """import threading
    async def use():
        await launch("fake-env:1", provider=FakeProvider)
        ready.set()
        await asyncio.sleep(3600)
    ready = threading.Event()
    threading.Thread(target=lambda: asyncio.run(use()), daemon=True).start()
    ready.wait()"""
    process = _start(cloud, body)
    _, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, err
    assert cloud.count("create") == 1
    await nothing_left(cloud)


async def test_exit_with_a_hanging_delete_is_bounded(cloud: FakeCloud) -> None:
    """A cleanup that nobody answers ends, and the next process completes it.

    Scenario: A08, A14
    Mutation: owner._at_exit waits without a bound
    """
    rule = cloud.faults.add("delete", hang=True)
    process = _start(cloud, 'await launch("fake-env:1", provider=FakeProvider, timeouts={{"cleanup": 0.2}})'.format())
    await asyncio.to_thread(process.communicate, timeout=60)
    assert rule.hits == 1
    assert [row.state for row in await (await Journal.open()).rows()] == ["pending_delete"]
    rule.release()
    await _gc(cloud)
    await nothing_left(cloud)
