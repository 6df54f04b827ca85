"""Contract suite: processes that outlive the call that started them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.errors import ExecError, ExecTimeout
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase
from openenv_sandbox.testing.suite_raw import nap, sleeping

if TYPE_CHECKING:
    from openenv_sandbox.running import RunningSandbox


class ProcessContract(ContractBase):
    """`RunningSandbox.spawn`."""

    async def test_spawn(self, running: RunningSandbox) -> None:
        """A spawned process can be asked, read and waited for, also by another handle."""
        process = await running.spawn("echo out; echo err >&2; read line; echo got $line; exit 5", stdin=True)
        assert await process.poll() is None
        with pytest.raises(ExecTimeout):
            await process.wait(timeout=0.2)
        other = running.process(process.id)
        await other.write_stdin(b"hello\n")
        assert await process.wait(timeout=HANG_S) == 5
        assert await other.poll() == 5
        assert await process.logs() == b"out\ngot hello\n"
        assert await process.logs("stderr") == b"err\n"
        assert await process.logs(tail=4) == b"llo\n"
        await process.aclose()
        with pytest.raises(ExecError):
            await process.poll()

    async def test_spawn_stdin_end(self, running: RunningSandbox) -> None:
        """Closing its input is seen by the process; without ``stdin`` there is none."""
        process = await running.spawn(["cat"], stdin=True)
        await process.write_stdin(b"abc", eof=True)
        assert await process.wait(timeout=HANG_S) == 0
        assert await process.logs() == b"abc"
        assert await (await running.spawn(["cat"])).wait(timeout=HANG_S) == 0

    async def test_spawn_kill(self, bench: Bench, running: RunningSandbox) -> None:
        """Killing ends the process and its children, and its exit code is kept."""
        seconds = nap()
        process = await running.spawn(
            f"sleep {seconds} & (setsid sleep {seconds} || sleep {seconds}) & sleep {seconds}"
        )
        await bench.until("the process starts", lambda: sleeping(running._sandbox, seconds))
        await process.kill()
        assert await process.wait(timeout=HANG_S) == 137
        assert await sleeping(running._sandbox, seconds) == []

    async def test_spawn_bounded_logs(self, running: RunningSandbox) -> None:
        """Output that nobody reads does not block the process and is kept only in part."""
        process = await running.spawn("head -c 50000000 /dev/zero; echo end")
        assert await process.wait(timeout=HANG_S) == 0
        assert await process.logs(tail=4) == b"end\n"
        assert 1 << 20 < len(await process.logs()) < 20 << 20

    async def test_spawn_environment(self, running: RunningSandbox) -> None:
        """Variables and working directory reach the process."""
        process = await running.spawn('printf "%s|%s" "$OE_A" "$(pwd -P)"', env={"OE_A": "x 'y'"}, cwd="/usr")
        assert await process.wait(timeout=HANG_S) == 0
        assert await process.logs() == b"x 'y'|/usr"

    async def test_spawn_missing_program(self, running: RunningSandbox) -> None:
        """A program that does not exist is an error of the call."""
        with pytest.raises(ExecError, match="no-such-program"):
            await running.spawn(["no-such-program"])
