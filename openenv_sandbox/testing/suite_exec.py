"""Contract suite: commands as users run them, on whatever the backend has."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from openenv_sandbox.errors import ExecError, ExecTimeout, SandboxGone
from openenv_sandbox.running import RunningSandbox, exec_limits
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase
from openenv_sandbox.testing.suite_raw import nap, sleeping

TREE = (
    "printf part; printf perr >&2; sleep {n} & (setsid sleep {n} || sleep {n}) 2>/dev/null & "
    "(nohup sleep {n} || sleep {n}) >/dev/null 2>&1 & (trap '' TERM; sleep {n}) & sleep {n}"
)


class ExecContract(ContractBase):
    """`RunningSandbox.exec`."""

    @pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_exec_exit_code(self, running: RunningSandbox, script: str, code: int, stream: bool) -> None:
        """The exit code is exact, with and without streaming, with and without output."""
        sink = (lambda name, data: None) if stream else None
        assert (await running.exec(script, on_output=sink)).exit_code == code
        assert (await running.exec(f"echo out; {script}", on_output=sink)).exit_code == code

    async def test_exec_streams_apart(self, running: RunningSandbox) -> None:
        """Stdout and stderr are apart and complete on every backend."""
        result = await running.exec("printf out; printf err >&2; printf more; exit 7")
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"outmore", b"err")

    async def test_exec_sequence(self, running: RunningSandbox) -> None:
        """A sequence is executed as it is, a string by /bin/sh."""
        words = ["a b", "", "$HOME", "'", "é", "x\ny"]
        result = await running.exec(["printf", "<%s>", *words])
        assert result.text() == "".join(f"<{word}>" for word in words)
        assert (await running.exec("echo $((6 * 7)) | cat")).text() == "42\n"

    @pytest.mark.parametrize("size", [0, 1, 999_999, 1_000_000, 3 << 20])
    async def test_exec_stdin(self, running: RunningSandbox, size: int) -> None:
        """Input arrives whole, and its end is seen."""
        data = (hashlib.sha256(b"seed").digest() * (size // 32 + 1))[:size]
        result = await running.exec("wc -c; cat >/dev/null", stdin=data)
        assert int(result.stdout) == size
        if size < 1 << 20:
            assert (await running.exec(["cat"], stdin=data)).stdout == data

    async def test_exec_no_stdin(self, running: RunningSandbox) -> None:
        """Without input a command sees end-of-file at once; a heredoc works."""
        result = await running.exec("read x || echo empty; cat <<END\nline $((1 + 1))\nEND")
        assert result.text() == "empty\nline 2\n"

    async def test_exec_unread_stdin(self, running: RunningSandbox) -> None:
        """A command that does not read its input ends all the same."""
        assert (await running.exec("exit 3", stdin=b"x" * 500_000)).exit_code == 3

    async def test_exec_env(self, running: RunningSandbox) -> None:
        """Variables arrive unchanged and never stand in a command line."""
        value = "c4n4ry 'x' \"y\" $HOME `id`\nsecond line \\ é"
        script = 'printf %s "$OE_A"; for f in /proc/[0-9]*/cmdline; do cat "$f"; done >&2 2>/dev/null; exit 0'
        result = await running.exec(script, env={"OE_A": value, "OE_B": "b"})
        assert result.text() == value
        assert b"c4n4ry" not in result.stderr
        assert (await running.exec("echo ${OE_A:-unset}")).text() == "unset\n"

    async def test_exec_cwd(self, running: RunningSandbox) -> None:
        """The working directory is used; one that does not exist is an error."""
        assert (await running.exec("pwd -P", cwd="/usr")).text() == "/usr\n"
        with pytest.raises(ExecError):
            await running.exec(["true"], cwd="/no/such/folder")

    async def test_exec_missing_program(self, running: RunningSandbox) -> None:
        """A program that does not exist is an ExecError, not an exit code."""
        with pytest.raises(ExecError, match="no-such-program"):
            await running.exec(["no-such-program"])

    async def test_exec_check(self, running: RunningSandbox) -> None:
        """``check`` turns a failure into an error that shows stderr."""
        with pytest.raises(ExecError, match="why it failed"):
            await running.exec("echo why it failed >&2; exit 4", check=True)

    async def test_exec_deadline(self, bench: Bench, running: RunningSandbox) -> None:
        """At the deadline every process is ended, and what came before is on the error."""
        seconds = nap()
        with pytest.raises(ExecTimeout) as caught:
            await asyncio.wait_for(running.exec(TREE.format(n=seconds), timeout=1), HANG_S)
        assert (caught.value.stdout, caught.value.stderr[:4]) == (b"part", b"perr")
        assert caught.value.tree_killed
        assert await sleeping(running._sandbox, seconds) == []

    async def test_exec_own_124(self, running: RunningSandbox) -> None:
        """A command's own exit code 124 is not taken for the deadline."""
        assert (await running.exec("exit 124", timeout=30)).exit_code == 124

    async def test_exec_cancel(self, bench: Bench, running: RunningSandbox) -> None:
        """Cancelling the call ends every process of the command."""
        seconds = nap()
        started = asyncio.Event()
        task = asyncio.ensure_future(
            running.exec(TREE.format(n=seconds), timeout=None, on_output=lambda name, data: started.set())
        )
        if self.exec_caps(bench).live:
            await asyncio.wait_for(started.wait(), HANG_S)
        else:
            await bench.until("the command starts", lambda: sleeping(running._sandbox, seconds))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, HANG_S)
        assert await sleeping(running._sandbox, seconds) == []

    async def test_exec_output_bound(self, running: RunningSandbox) -> None:
        """Output beyond the limit is dropped, marked, and does not stop the command."""
        result = await running.exec("head -c 300000 /dev/zero; echo end >&2", max_output=1000)
        assert (len(result.stdout), result.stderr, result.truncated) == (1000, b"end\n", True)
        assert not (await running.exec("printf x", max_output=1)).truncated

    async def test_exec_limits_of_the_context(self, running: RunningSandbox) -> None:
        """Limits set for a task hold there and in what it starts, not beside it."""

        async def limited() -> int:
            with exec_limits(max_output=10):
                return len((await asyncio.ensure_future(running.exec("printf %050d 1"))).stdout)

        async def plain() -> int:
            return len((await running.exec("printf %050d 1")).stdout)

        assert tuple(await asyncio.gather(limited(), plain())) == (10, 50)

    async def test_exec_streaming(self, bench: Bench, running: RunningSandbox) -> None:
        """Chunks arrive in order and are all of the output; a failing callback ends the command."""
        chunks: list[bytes] = []
        result = await running.exec("echo a; echo b; echo c", on_output=lambda name, data: chunks.append(data))
        assert b"".join(chunks) == result.stdout == b"a\nb\nc\n"

        def fail(name: str, data: bytes) -> None:
            raise ZeroDivisionError

        last = "sleep 4321" if self.exec_caps(bench).live else "true"  # told at the end, there is nothing to end
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(running.exec(f"echo a; {last}", on_output=fail, timeout=600), HANG_S)

    async def test_exec_background(self, bench: Bench, running: RunningSandbox) -> None:
        """A process left in the background does not hold the call, and lives on."""
        seconds = nap()
        result = await asyncio.wait_for(running.exec(f"sleep {seconds} & echo started"), HANG_S)
        assert result.text() == "started\n"
        assert len(await sleeping(running._sandbox, seconds)) == 1

    async def test_exec_utf8(self, running: RunningSandbox) -> None:
        """Text of every script survives, whatever the locale inside."""
        text = "café €100 中文 😀"
        result = await running.exec('printf %s "$T"; printf %s "$T" >&2', env={"T": text, "LANG": "C", "LC_ALL": "C"})
        assert (result.text(), result.stderr.decode()) == (text, text)

    async def test_exec_imitated_end(self, running: RunningSandbox) -> None:
        """Output that looks like the end of a command, also by what the command can see, changes nothing."""
        script = 'printf "%sO;%sE0,;" "$OPENENV_EXEC" "$OPENENV_EXEC" | tee /dev/stderr; printf "%s" no-newline; exit 9'
        result = await running.exec(script)
        assert result.exit_code == 9
        assert result.stdout.endswith(b"no-newline")
        assert b"E0,;" in result.stderr

    async def test_exec_at_once(self, running: RunningSandbox) -> None:
        """Commands run side by side without mixing."""
        results = await asyncio.gather(*(running.exec(f"printf {n}; exit {n}") for n in range(8)))
        assert [(r.exit_code, r.stdout) for r in results] == [(n, str(n).encode()) for n in range(8)]

    async def test_exec_hides_secrets(self, bench: Bench) -> None:
        """Secrets of the sandbox are masked in output unless the call says otherwise."""
        self.exec_caps(bench)
        running = await bench.run(secrets={"OE_SECRET": "s3kret-canary"})
        command = "printf 's3kret-'; printf 'canary'; printf 's3kret-canary' >&2"
        streamed: list[bytes] = []
        result = await running.exec(command, on_output=lambda name, data: streamed.append(data))
        assert (result.stdout, result.stderr) == (b"***", b"***")
        assert b"canary" not in b"".join(streamed)
        assert (await running.exec(command, redact=False)).stdout == b"s3kret-canary"

    async def test_exec_after_delete(self, running: RunningSandbox) -> None:
        """A deleted sandbox says that it is gone."""
        await running.stop(confirm=True)
        with pytest.raises(SandboxGone):
            await asyncio.wait_for(running.exec("true"), HANG_S)
