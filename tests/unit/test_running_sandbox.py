"""The public face: commands, processes, life."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import _shell_wrapped
from openenv_sandbox import process as process_module
from openenv_sandbox.errors import CapabilityError, ExecError, ExecTimeout
from openenv_sandbox.running import exec_limits

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


async def test_secrets_in_output(running: Callable[..., Any]) -> None:
    """A program that prints its environment shows no secret, unless the call asks for it.

    Scenario: M02
    Mutation: ``redact`` defaults to False
    """
    box = running(spec={"secrets": {"TOKEN": "s3kret-canary", "PIN": "1234"}})
    result = await box.exec("printf 'TOKEN=s3kret-canary PIN=1234'")
    assert result.stdout == b"TOKEN=*** PIN=1234"
    assert "canary" not in repr(result)
    assert (await box.exec("printf s3kret-canary", redact=False)).stdout == b"s3kret-canary"
    process = await box.spawn("printf s3kret-canary")
    await process.wait(timeout=30)
    assert await process.logs() == b"***"


async def test_limits_of_a_task(running: Callable[..., Any]) -> None:
    """Limits of a context hold in it and in what it starts, and nowhere else.

    Scenario: F11
    Mutation: keep the limits in a module variable instead of a context variable
    """
    box = running()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def inside() -> int:
        with exec_limits(max_output=5, timeout=0.2):
            entered.set()
            await leave.wait()
            with pytest.raises(ExecTimeout):
                await box.exec("sleep 100")
            return len((await box.exec("printf 0123456789")).stdout)

    async def beside() -> int:
        await entered.wait()
        length = len((await box.exec("printf 0123456789")).stdout)
        leave.set()
        return length

    assert tuple(await asyncio.gather(inside(), beside())) == (5, 10)


async def test_default_timeout(running: Callable[..., Any]) -> None:
    """The spec's exec timer applies where the call says nothing; None waits."""
    box = running(spec={"timeouts": {"exec": 0.2}})
    with pytest.raises(ExecTimeout):
        await box.exec("sleep 100")
    assert (await box.exec("sleep 0.4; echo end", timeout=None)).text() == "end\n"
    with pytest.raises(ExecError, match="positive"):
        await box.exec("true", timeout=0)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
async def test_no_time_at_all(running: Callable[..., Any], timeout: float) -> None:
    """A timeout that is no time is refused; an endless one is none."""
    box = running()
    with pytest.raises(ExecError, match="positive"):
        await box.exec("true", timeout=timeout)
    assert (await box.exec("true", timeout=float("inf"))).ok


async def test_commands_that_are_none(running: Callable[..., Any]) -> None:
    """An empty command, NUL characters and bad variable names are refused."""
    box = running()
    for bad in ([], [""], ["a\0b"], "a\0b"):
        with pytest.raises(ExecError):
            await box.exec(bad)
    with pytest.raises(ExecError, match="BAD NAME"):
        await box.exec("true", env={"BAD NAME": "x"})


async def test_no_commands_at_all(child: Callable[..., Any], running: Callable[..., Any]) -> None:
    """A backend that runs no commands says so."""
    box = running()
    box._provider._caps = type(box._provider._caps)(exec=None)
    with pytest.raises(CapabilityError, match="commands"):
        await box.exec("true")


async def test_longer_than_the_backend_allows(running: Callable[..., Any]) -> None:
    """A command over the backend's bound runs detached and is waited for.

    Scenario: C13
    Mutation: hand every command to the backend's exec, whatever its bound
    """
    box = running(max_s=1.0)
    result = await box.exec("cat; echo err >&2; sleep 1.5; exit 6", stdin=b"in", timeout=60)
    assert (result.exit_code, result.stdout, result.stderr) == (6, b"in", b"err\n")
    with pytest.raises(ExecTimeout) as caught:
        await box.exec("echo part; sleep 7654", timeout=1.2)
    assert caught.value.stdout == b"part\n"
    listing = await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", timeout=0.9)
    assert b"sleep 7654 " not in listing.stdout.replace(b"; sleep 7654", b"")


async def test_silence_is_no_end(running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that says nothing for many times every inner interval completes.

    Scenario: C14
    Mutation: the backstop applies without a timeout too, or counts from the last output
    """
    for name in ("BACKSTOP_S", "GRACE_S"):
        monkeypatch.setattr(_shell_wrapped, name, 0.1)
    monkeypatch.setattr(process_module, "WAIT_S", 0.2)
    box = running()
    assert (await box.exec("echo a; sleep 1.5; echo b", timeout=None)).text() == "a\nb\n"
    process = await box.spawn("sleep 1.5; exit 3")
    assert await process.wait(timeout=60) == 3


async def test_process_outlives_its_transport(running: Callable[..., Any]) -> None:
    """A spawned process goes on when the exec that started it is long over; status, output and end are there later.

    Scenario: F14
    Mutation: start the supervisor in the foreground of the exec
    """
    box = running()
    process = await box.spawn("while [ ! -e stop ]; do echo tick; sleep 0.05; done; exit 4")
    await asyncio.gather(*(started.wait() for started in box._sandbox.children))
    assert await process.poll() is None
    await box.write("stop", b"")
    assert await box.process(process.id).wait(timeout=60) == 4
    assert b"tick\n" in await process.logs()


async def test_unread_output(running: Callable[..., Any]) -> None:
    """A process that writes 50 MB with nobody reading goes on, and what is kept is bounded.

    Scenario: F16
    Mutation: connect the process to a pipe that is not read, or keep all of it
    """
    box = running()
    process = await box.spawn("head -c 50000000 /dev/zero; echo end >&2; exit 0")
    assert await process.wait(timeout=120) == 0
    assert await process.logs("stderr") == b"end\n"
    kept = sum(p.stat().st_size for p in box._sandbox.folder.rglob("*") if p.is_file())
    assert kept < 20 << 20


async def test_end_of_life(running: Callable[..., Any]) -> None:
    """stop, detach and aclose ask the owner; endpoints are closed first."""
    box = running()
    closed: list[bool] = []
    endpoint = await box.endpoint(80)

    async def close() -> None:
        closed.append(True)

    endpoint._close = close
    await box.stop(confirm=True)
    await box.detach()
    await box.aclose()
    assert closed == [True]
    assert box._owner.calls == ["delete confirm=True", "detach", "release"]


async def test_not_picklable(running: Callable[..., Any]) -> None:
    """A running sandbox says why it does not pickle."""
    with pytest.raises(TypeError, match="attach"):
        pickle.dumps(running())
