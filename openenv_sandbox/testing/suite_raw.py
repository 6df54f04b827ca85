"""Contract suite: `Sandbox.exec_raw` does by itself what `ExecCapabilities` says."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import CapabilityError, ExecError
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.provider import RawResult, Sandbox


async def raw(sandbox: Sandbox, *argv: str, **kw: Any) -> tuple[RawResult, bytes, bytes]:
    """One raw command: its result, stdout and stderr."""
    streams: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    sink = kw.pop("sink", lambda name, data: streams[name].extend(data))
    arguments = {"env": {}, "cwd": None, "user": None, "stdin": None, **kw}
    result = await asyncio.wait_for(sandbox.exec_raw(argv, on_output=sink, **arguments), HANG_S)
    return result, bytes(streams["stdout"]), bytes(streams["stderr"])


async def raw_bytes(sandbox: Sandbox, caps: ExecCapabilities, script: str, **kw: Any) -> bytes:
    """What a script writes, byte by byte, also where output comes back as text."""
    if caps.binary:
        return (await raw(sandbox, "/bin/sh", "-c", script, **kw))[1]
    return bytes.fromhex((await raw(sandbox, "/bin/sh", "-c", f"{script} | od -An -v -tx1", **kw))[1].decode())


def line(caps: ExecCapabilities, out: bytes) -> bytes:
    """One line of output; where output is text, its end may have been cut."""
    return out if caps.binary else out.rstrip() + b"\n"


class RawContract(ContractBase):
    """The primitive, without core's wrapper."""

    @pytest.mark.parametrize("code", [0, 7, 255])
    async def test_raw_exit_code(self, bench: Bench, code: int) -> None:
        """The exit code is exact and never missing."""
        self.exec_caps(bench)
        result, _, _ = await raw(await bench.create(), "/bin/sh", "-c", f"exit {code}")
        assert result.exit_code == code

    async def test_raw_signal(self, bench: Bench) -> None:
        """A command that a signal ended has 128 plus its number."""
        self.exec_caps(bench)
        result, _, _ = await raw(await bench.create(), "/bin/sh", "-c", "kill -9 $$")
        assert result.exit_code == 137

    async def test_raw_arguments(self, bench: Bench) -> None:
        """Arguments arrive as they are: no shell, no splitting."""
        self.exec_caps(bench)
        words = ["a b", "", "$HOME", "'\"", "x\ny", "é中😀", "*", "-n", "\\"]
        _, out, _ = await raw(await bench.create(), "/bin/sh", "-c", 'printf "<%s>" "$@"', "sh", *words)
        assert out.decode() == "".join(f"<{word}>" for word in words)

    async def test_raw_bytes(self, bench: Bench) -> None:
        """``binary``: output is bytes, every value, unchanged, no end-of-line conversion."""
        self.needs(self.exec_caps(bench).binary, "exec.binary")
        script = r"printf '\000\001\012\015\012\033\177\200\303\377'"
        _, out, _ = await raw(await bench.create(), "/bin/sh", "-c", script)
        assert out == b"\0\1\n\r\n\x1b\x7f\x80\xc3\xff"

    async def test_raw_missing_program(self, bench: Bench) -> None:
        """A program that does not exist is an ExecError, or exit code 126 or 127; never a success."""
        self.exec_caps(bench)
        sandbox = await bench.create()
        try:
            result, _, _ = await raw(sandbox, "/no/such/program")
        except ExecError:
            return
        assert result.exit_code in (126, 127)

    async def test_raw_no_stdin(self, bench: Bench) -> None:
        """Without input a command reads end-of-file and does not wait."""
        caps = self.exec_caps(bench)
        result, out, _ = await raw(await bench.create(), "/bin/sh", "-c", "cat; echo end")
        assert (result.exit_code, line(caps, out)) == (0, b"end\n")

    async def test_raw_split(self, bench: Bench) -> None:
        """``split``: stdout and stderr arrive apart; without, all arrives as stdout."""
        split = self.exec_caps(bench).split
        _, out, err = await raw(await bench.create(), "/bin/sh", "-c", "printf out; printf err >&2")
        assert (out, err) == (b"out", b"err") if split else sorted(out + err) == sorted(b"outerr")

    @pytest.mark.parametrize("size", [1, 70_000, 1 << 20])
    async def test_raw_stdin(self, bench: Bench, size: int) -> None:
        """``stdin``: all of it arrives, then end-of-file."""
        caps = self.exec_caps(bench)
        self.needs(caps.stdin, "exec.stdin")
        data = bytes(range(256)) * (size // 256 + 1)
        data = data[: min(size, caps.max_stdin or size)]
        assert await raw_bytes(await bench.create(), caps, "cat", stdin=data) == data

    async def test_raw_stdin_stream(self, bench: Bench) -> None:
        """``stdin_stream``: an iterator is sent while the command runs."""
        caps = self.exec_caps(bench)
        self.needs(caps.stdin_stream and caps.live, "exec.stdin_stream")
        answered = asyncio.Event()
        got = bytearray()

        def sink(name: str, data: bytes) -> None:
            got.extend(data)
            answered.set()

        async def words() -> AsyncIterator[bytes]:
            yield b"one\n"
            await asyncio.wait_for(answered.wait(), HANG_S)
            yield b"two\n"

        script = "while read -r x; do echo got $x; done"
        result, _, _ = await raw(await bench.create(), "/bin/sh", "-c", script, stdin=words(), sink=sink)
        assert (result.exit_code, bytes(got)) == (0, b"got one\ngot two\n")

    async def test_raw_stream(self, bench: Bench) -> None:
        """``stream``: output arrives while the command still runs."""
        caps = self.exec_caps(bench)
        self.needs(caps.stream, "exec.stream")
        sandbox = await bench.create()
        first = asyncio.Event()
        script = "echo first; while [ ! -e ${TMPDIR:-/tmp}/go ]; do sleep 0.05 2>/dev/null || sleep 1; done"
        task = asyncio.ensure_future(raw(sandbox, "/bin/sh", "-c", script, sink=lambda name, data: first.set()))
        try:
            await asyncio.wait_for(first.wait(), HANG_S)
            assert not task.done()
        finally:
            await raw(sandbox, "/bin/sh", "-c", ": >${TMPDIR:-/tmp}/go")
            await task

    async def test_raw_env(self, bench: Bench) -> None:
        """``env``: variables are added for one command, values unchanged, the others stay."""
        self.needs(self.exec_caps(bench).env, "exec.env")
        value = " x'y\"z\n$HOME é "
        script = 'printf "%s|%s" "$OE_TEST" "${PATH:+path}"'
        sandbox = await bench.create()
        _, out, _ = await raw(sandbox, "/bin/sh", "-c", script, env={"OE_TEST": value})
        assert out.decode() == f"{value}|path"
        _, out, _ = await raw(sandbox, "/bin/sh", "-c", script)
        assert out == b"|path"

    async def test_raw_cwd(self, bench: Bench) -> None:
        """``cwd``: a working directory is used."""
        caps = self.exec_caps(bench)
        self.needs(caps.cwd, "exec.cwd")
        _, out, _ = await raw(await bench.create(), "/bin/sh", "-c", "pwd -P", cwd="/usr")
        assert line(caps, out) == b"/usr\n"

    async def test_raw_user(self, bench: Bench) -> None:
        """``user``: a command can run as another user."""
        caps = self.exec_caps(bench)
        self.needs(caps.user, "exec.user")
        _, out, _ = await raw(await bench.create(), "id", "-u", user="65534")
        assert line(caps, out) == b"65534\n"

    async def test_raw_kill(self, bench: Bench) -> None:
        """``kill``: cancelling ends the command and its children."""
        self.needs(self.exec_caps(bench).kill, "exec.kill")
        sandbox = await bench.create()
        started = asyncio.Event()
        seconds = nap()
        script = f"sleep {seconds} & (setsid sleep {seconds} || sleep {seconds}) & echo on; sleep {seconds}"
        task = asyncio.ensure_future(raw(sandbox, "/bin/sh", "-c", script, sink=lambda name, data: started.set()))
        await asyncio.wait_for(started.wait(), HANG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def none_left() -> bool:
            return not await sleeping(sandbox, seconds)

        await bench.until("the command's processes end", none_left)

    async def test_raw_put(self, bench: Bench) -> None:
        """``put``: a small file is written, and commands can read it."""
        sandbox = await bench.create()
        if not bench.caps.put:
            with pytest.raises(CapabilityError):
                await sandbox.put("/tmp/oe-put", b"x")
            return
        caps = self.exec_caps(bench)
        _, folder, _ = await raw(sandbox, "/bin/sh", "-c", 'printf %s "${TMPDIR:-/tmp}"')
        data = bytes(range(256)) * 4
        await sandbox.put(f"{folder.decode()}/oe-put", data)
        assert await raw_bytes(sandbox, caps, f"cat {folder.decode()}/oe-put") == data


def nap() -> str:
    """A number of seconds nobody else sleeps: not every backend hides other processes of the machine."""
    return str(100_000_000 + secrets.randbelow(800_000_000))


async def sleeping(sandbox: Sandbox, seconds: str) -> list[str]:
    """Pids of ``sleep seconds`` in the sandbox."""
    script = (
        'for f in /proc/[0-9]*/cmdline; do case "$(tr "\\0" " " <"$f" 2>/dev/null)" in "sleep $1 ") '
        'echo "${f%/cmdline}";; esac; done 2>/dev/null; exit 0'
    )
    _, out, _ = await raw(sandbox, "/bin/sh", "-c", script, "sh", seconds)
    return out.decode().split()
