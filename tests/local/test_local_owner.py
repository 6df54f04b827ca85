"""Who owns a local sandbox, and what happens when the owner is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.local import LocalProvider

from openenv_sandbox.errors import ProviderError, SandboxGone
from openenv_sandbox.provider import SandboxRef
from tests.local.sandboxes import Maker, about, none_left, processes, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

# A grandchild that left its session and whose parent is gone, with nothing of the sandbox in its environment.
ESCAPE = "(env -i setsid /bin/sh -c 'exec sleep 54321' </dev/null >/dev/null 2>&1 &) ; sleep 0.2"
OWNER = """
import asyncio, os, sys
from tests.local.sandboxes import Maker, run, SLEEP
async def main():
    make = Maker({isolation!r})
    sandbox = await make(key="oe-00000000-00000000000a", command=SLEEP)
    await run(sandbox, {escape!r})
    {more}
    print("ready", flush=True)
    {after}
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def owner(isolation: str, more: str = "pass", after: str = "pass") -> subprocess.Popen[str]:
    """A process that owns a sandbox and stands still."""
    script = OWNER.format(isolation=isolation, escape=ESCAPE, more=more, after=after)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def sleepers() -> list[int]:
    return await asyncio.to_thread(processes, "54321")


async def test_a_killed_owner_takes_everything_along(isolation: str, state_dir: Path) -> None:
    """kill -9 of the owner ends the sandbox, also a grandchild that forked twice and left its session.

    Scenario: A04
    Mutation: `Hub._gone` does not end the sandbox with its last owner, or `kill_tree` follows process groups only
    """
    process = owner(isolation)
    assert processes(str(state_dir))
    assert await sleepers()
    kill(process)
    assert none_left(str(state_dir)) == []
    assert none_left("54321") == []
    provider = LocalProvider({"isolation": isolation})
    (ref,) = await provider.find("oe-00000000-00000000000a")
    assert [info.status async for info in provider.list({})] == ["stopped"]
    await provider.delete(ref)


async def test_a_forked_child_keeps_no_sandbox_alive(isolation: str, state_dir: Path) -> None:
    """A child that its owner forked does not stand in for it.

    Scenario: A04
    Mutation: `_local_link` does not register `_forget_in_child`
    """
    more = (
        "child = os.fork()\n    if child == 0: import time; time.sleep(60); os._exit(0)\n    print(child, flush=True)"
    )
    process = owner(isolation, after=more)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    kill(process)
    try:
        assert none_left(str(state_dir), but=[child]) == []
    finally:
        os.kill(child, signal.SIGKILL)
    provider = LocalProvider({"isolation": isolation})
    await provider.delete((await provider.find("oe-00000000-00000000000a"))[0])


async def test_letting_go_leaves_it_running(isolation: str, state_dir: Path) -> None:
    """After `aclose` the sandbox outlives its maker; another process finds it, uses it, and is then its owner.

    Scenario: A16
    Mutation: `aclose` closes the connection without RELEASE, or ADOPT does not make an owner
    """
    kill(owner(isolation, more="await sandbox.aclose()"))
    provider = LocalProvider({"isolation": isolation})
    (ref,) = await provider.find("oe-00000000-00000000000a")
    sandbox: Any = await provider.attach(ref)
    assert await run(sandbox, "echo $HOME >/dev/null; echo here") == (0, "here\n")
    adopted = owner_of_attached(isolation)
    await sandbox.aclose()
    assert [info.status async for info in provider.list({})] == ["running"]
    kill(adopted)
    assert none_left(str(state_dir)) == []
    await provider.delete(ref)


def owner_of_attached(isolation: str) -> subprocess.Popen[str]:
    script = f"""
import asyncio
from openenv_providers.local import LocalProvider
async def main():
    provider = LocalProvider({{"isolation": {isolation!r}}})
    sandbox = await provider.attach((await provider.find("oe-00000000-00000000000a"))[0])
    print("ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_a_loop_that_ends_without_cleaning_up(isolation: str, state_dir: Path) -> None:
    """A program that simply ends leaves no process.

    Scenario: A17
    Mutation: the owner's connection is inheritable, so that a sandbox made later holds it open
    """
    script = f"""
import asyncio, sys
from tests.local.sandboxes import Maker, SLEEP
async def main():
    make = Maker({isolation!r})
    for n in range(3):
        await make(key=f"oe-00000000-00000000000{{n}}", command=SLEEP)
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert none_left(str(state_dir)) == []
    provider = LocalProvider({"isolation": isolation})
    for n in range(3):
        await provider.delete(SandboxRef("local", provider.scope(), f"oe-00000000-00000000000{n}"))


async def test_the_end_is_seen_by_every_owner(make: Maker) -> None:
    """The server's death reaches its maker, who attached, and who attaches afterwards, with code and last words.

    Scenario: E01
    Mutation: the record is not written, or `attach` ignores it
    """
    sandbox = await make(command=("/bin/sh", "-c", "echo some words; read line </dev/null; sleep 0.3; exit 17"))
    other = await make.provider.attach(sandbox.ref)
    for one in (sandbox, other):
        end = await asyncio.wait_for(one.wait_exit(), 30)
        assert (end.code, end.tail) == (17, b"some words\n")
    late: Any = await make.provider.attach(sandbox.ref)
    assert late.info.status == "stopped"
    assert (await late.wait_exit()).code == 17
    assert await late.logs() == b"some words\n"
    with pytest.raises(SandboxGone, match="ended with code 17"):
        await run(late, "true")


async def test_deleting_ends_the_whole_tree_before_it_returns(make: Maker, state_dir: Path) -> None:
    """When delete returns, no process is left and the folder is gone, whatever modes the workload gave it.

    Scenario: A03
    Mutation: `end` returns at the end of the connection, `remove` does not repair modes
    """
    sandbox = await make(command=("/bin/sh", "-c", "trap '' TERM; sleep 54321 & (setsid sleep 54321 &); wait"))
    await run(sandbox, "mkdir -p $HOME/a/b && touch $HOME/a/b/c && chmod 000 $HOME/a/b $HOME/a")
    await run(sandbox, ESCAPE)
    await sandbox.delete()
    assert processes(str(state_dir)) == []
    assert await sleepers() == []
    assert not sandbox.folder.exists()


async def test_one_key_is_one_sandbox(make: Maker) -> None:
    """A second create under a key fails and disturbs nothing."""
    sandbox = await make()
    with pytest.raises(ProviderError, match="already"):
        await make(key=sandbox.ref.id)
    assert (await about(sandbox))["greeting"] == "tiny"


@pytest.mark.parametrize("id", ["../..", "", "a/b", "..", "oe-x/../../y"])
async def test_an_id_never_leads_out_of_the_folder(state_dir: Path, id: str) -> None:
    """A forged ref removes nothing.

    Mutation: `delete` joins the id to the folder unchecked
    """
    (state_dir / "precious").write_text("kept")
    (state_dir / "local").mkdir()
    provider = LocalProvider({"isolation": "none"})
    await provider.delete(SandboxRef("local", provider.scope(), id))
    assert (state_dir / "precious").exists()
    with pytest.raises(SandboxGone):
        await provider.attach(SandboxRef("local", provider.scope(), id))
