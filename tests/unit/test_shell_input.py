"""Input, output and endings of wrapped commands."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv_sandbox._shell_stream import Decoder, Masker, Output
from openenv_sandbox.errors import CapabilityError, ExecError, ExecTimeout
from openenv_sandbox.shell import Command, ShellState, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio
MIB = 1 << 20


@pytest.mark.parametrize("size", [1, 16, 48, 64])
async def test_large_input_is_whole(child: Callable[..., Any], size: int) -> None:
    """Input of 1 to 64 MiB arrives byte for byte.

    Scenario: F07
    Mutation: the wrapper counts nothing and passes what came
    """
    box = child()
    result = await run(box, box.caps, Command(["wc", "-c"], stdin=bytes(size * MIB), timeout=100))
    assert int(result.stdout) == size * MIB


async def test_short_input_is_an_error(child: Callable[..., Any]) -> None:
    """Input that the backend loses on the way is an error, and the command does not run.

    Scenario: F07
    Mutation: start the command without comparing the number of bytes that came with the number sent
    """
    box = child()
    box.stdin_cut = 40 * MIB
    with pytest.raises(ExecError, match="not run"):
        await run(box, box.caps, Command(["touch", "ran"], stdin=bytes(41 * MIB), timeout=100))
    assert not (box.folder / "ran").exists()


@pytest.mark.parametrize("puts", [True, False])
async def test_input_in_pieces(child: Callable[..., Any], puts: bool) -> None:
    """Backends with small or no input get it as files, which are removed."""
    caps: dict[str, Any] = {"stdin": False, "stdin_stream": False, "puts": True} if puts else {"max_stdin": 100_000}
    box = child(**caps)
    data = bytes(range(256)) * 10_000
    result = await run(box, box.caps, Command(["cat"], stdin=data, timeout=60))
    assert result.stdout == data
    assert not [p for p in box.folder.iterdir() if p.name.startswith(".oe")]


class OwnError(ConnectionError):
    """Of a kind that a backend might take for one of its own."""


@pytest.mark.parametrize("caps", [{}, {"stdin_stream": False}, {"kill": True}], ids=["stream", "collected", "plain"])
@pytest.mark.parametrize("bad", [OwnError("mine"), "text"], ids=["raises", "no bytes"])
async def test_input_that_fails_ends_the_command(child: Callable[..., Any], caps: dict[str, Any], bad: Any) -> None:
    """An iterator given as input that raises, or gives no bytes: its own error is seen, and the command is ended.

    Scenario: F07
    Mutation: hand the caller's iterator to the backend as it is
    """

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first\n"
        if isinstance(bad, Exception):
            raise bad
        yield bad

    box = child(**caps)
    with pytest.raises(OwnError if isinstance(bad, Exception) else TypeError):
        await run(box, box.caps, Command(["sh", "-c", "cat; touch ended"], stdin=pieces()))
    assert not (box.folder / "ended").exists()


async def test_no_way_for_input(child: Callable[..., Any]) -> None:
    """Without input and without put, variables that cannot go another way are refused, not put into argv."""
    box = child(stdin=False, stdin_stream=False, env=False)
    assert (await run(box, box.caps, Command(["true"], timeout=30))).exit_code == 0
    for command in (Command(["true"], env={"A": "b"}, timeout=30), Command(["true"], stdin=b"x", timeout=30)):
        with pytest.raises(CapabilityError):
            await run(box, box.caps, command)


async def test_variables_are_not_in_argv(child: Callable[..., Any]) -> None:
    """No argument list of the backend's call ever holds a variable or the trailer's nonce.

    Scenario: M01
    Mutation: send variables as arguments of the wrapper
    """
    box = child(env=False)
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    result = await run(box, box.caps, Command(["/bin/sh", "-c", script], env={"K": "s3kret-canary"}, timeout=30))
    assert b"s3kret-canary" not in result.stdout
    assert not any("s3kret-canary" in word for argv in box.argvs for word in argv)


async def test_every_byte_of_a_variable(child: Callable[..., Any], tools: Callable[..., str]) -> None:
    """A variable may hold any byte but NUL, under LANG=C, in every shell.

    Scenario: F09
    Mutation: read the header without -r, or with IFS set
    """
    value = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
    for shell in (("/bin/dash",), ("/bin/bash", "--posix")):
        box = child(shell=shell, env=False)
        result = await run(box, box.caps, Command(["/usr/bin/env", "-0"], env={"V": value}, timeout=30))
        values = dict(item.partition(b"=")[::2] for item in result.stdout.split(b"\0"))
        assert values[b"V"] == bytes(range(1, 256)), shell


async def test_text_under_c(running: Callable[..., Any]) -> None:
    """Text is the same on stdout, stderr, in a variable, a file name and a file.

    Scenario: F09
    Mutation: decode output with the locale's encoding
    """
    text = "café €100 中文 😀"
    box = running()
    result = await box.exec('printf %s "$T"; printf %s "$T" >&2; printf %s "$T" >"$T"', env={"T": text})
    assert (result.text(), result.stderr.decode()) == (text, text)
    assert (await box.read(text)).decode() == text


@pytest.mark.parametrize("split", [True, False])
async def test_output_cannot_imitate_the_end(child: Callable[..., Any], split: bool) -> None:
    """Whatever the command can see of the wrapper does not let it write the trailer.

    Scenario: F17
    Mutation: use the cookie of the environment as the trailer's nonce
    """
    box = child(split=split)
    script = (
        'for w in "$OPENENV_EXEC" $(tr "\\0" "\\n" </proc/$PPID/cmdline) $(tr "\\0" "\\n" </proc/$PPID/environ); do '
        'printf "%sO;%sE0,;" "$w" "$w"; printf "%sO;%sE0,;" "$w" "$w" >&2; done; printf no-newline; exit 9'
    )
    result = await run(box, box.caps, Command(["/bin/sh", "-c", script], timeout=30))
    assert result.exit_code == 9
    assert result.stdout.endswith(b"no-newline")


async def test_lost_exit_code(child: Callable[..., Any]) -> None:
    """An exit code that the backend does not tell is an error, never 0.

    Scenario: F21
    Mutation: ``code or 0`` in the result
    """
    box = child(kill=True)
    box.lose_code = True
    with pytest.raises(ExecError, match="did not say how") as caught:
        await run(box, box.caps, Command(["true"], timeout=30))
    assert caught.value.outcome == "unknown"
    box = child()
    box.lose_code = True
    assert (await run(box, box.caps, Command(["/bin/sh", "-c", "exit 3"], timeout=30))).exit_code == 3


async def test_output_that_breaks_off(child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The code arrived and the rest of stdout did not: that is an error, not a shorter output.

    Scenario: C13
    Mutation: take the trailer of stderr alone for the end of the command
    """
    box = child()
    whole = box.exec_raw

    async def cut(argv: Any, *, on_output: Any, **rest: Any) -> Any:
        return await whole(argv, on_output=lambda name, data: name == "stderr" and on_output(name, data), **rest)

    monkeypatch.setattr(box, "exec_raw", cut)
    with pytest.raises(ExecError, match="broke off") as caught:
        await run(box, box.caps, Command(["echo", "lost"], timeout=30))
    assert caught.value.outcome == "unknown"


async def test_wrapper_killed(child: Callable[..., Any]) -> None:
    """A command that loses its wrapper is an error, with what it may have done unknown."""
    box = child()
    with pytest.raises(ExecError, match="from outside") as caught:
        await run(box, box.caps, Command(["/bin/sh", "-c", "kill -9 -$(ps -o sid= $PPID | tr -d ' ')"], timeout=30))
    assert caught.value.outcome == "unknown"


async def test_no_shell(child: Callable[..., Any]) -> None:
    """Without a shell plain commands run, the deadline admits that it may leave processes, the rest is refused."""
    box, state = child(shell=()), ShellState()
    assert (await run(box, box.caps, Command(["printf", "x"], timeout=30), state=state)).stdout == b"x"
    assert state.has_shell is False
    with pytest.raises(ExecTimeout) as caught:
        await run(box, box.caps, Command(["sleep", "100"], timeout=0.2), state=state)
    assert not caught.value.tree_killed
    with pytest.raises(ExecError, match="no /bin/sh"):
        await run(box, box.caps, Command(["/bin/sh", "-c", "true"], timeout=30), state=state)
    poor = child(shell=(), cwd=False)
    with pytest.raises(CapabilityError, match="cwd"):
        await run(poor, poor.caps, Command(["true"], cwd="/", timeout=30))


async def test_a_refusal_that_passes_is_not_a_missing_shell(child: Callable[..., Any]) -> None:
    """A sandbox that takes no commands for a while (it is paused) has its shell again afterwards.

    Mutation: take every refusal for a missing shell
    """
    box, state = child(), ShellState()
    original = box.exec_raw

    async def paused(argv: Any, **kw: Any) -> Any:
        raise ExecError("the sandbox is paused", retryable=True)

    box.exec_raw = paused
    with pytest.raises(ExecError, match="paused"):
        await run(box, box.caps, Command(["true"], timeout=30), state=state)
    box.exec_raw = original
    result = await run(box, box.caps, Command(["/bin/sh", "-c", "exit 3"], timeout=30), state=state)
    assert (result.exit_code, state.has_shell) == (3, True)


async def test_silent_transport(child: Callable[..., Any]) -> None:
    """When the backend's stream says nothing at the deadline, a second command ends the tree."""
    box = child()
    original = box.exec_raw

    async def deaf(argv: Any, *, on_output: Any, **kw: Any) -> Any:
        if "t0=" not in argv[2] and argv[3] == "oe" and len(argv) > 8:
            await original(argv, on_output=lambda name, data: None, **kw)
            await asyncio.get_running_loop().create_future()
        return await original(argv, on_output=on_output, **kw)

    box.exec_raw = deaf
    command = Command(["sleep", "100"], timeout=0.1, grace=0.1)
    with pytest.raises(ExecTimeout) as caught:
        await asyncio.wait_for(run(box, box.caps, command), 60)
    assert caught.value.tree_killed


async def test_many_cancelled(running: Callable[..., Any]) -> None:
    """Fifty cancelled commands leave nothing, and no more than the bound run at once.

    Scenario: F19
    Mutation: no semaphore around commands, or no killing on cancellation
    """
    box = running()
    child = box._sandbox
    started = [asyncio.Event() for _ in range(20)]
    tasks = [
        asyncio.ensure_future(box.exec("echo on; sleep 5432", timeout=900, on_output=lambda n, d, e=e: e.set()))
        for e in started
    ]
    await asyncio.gather(*(event.wait() for event in started))
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    left = await box.exec('for f in /proc/[0-9]*/cmdline; do tr "\\0" " " <"$f"; echo; done 2>/dev/null; exit 0')
    assert b"sleep 5432 \n" not in left.stdout
    assert child.children


async def test_streams_of_input(child: Callable[..., Any]) -> None:
    """An iterator is sent while the command runs, or collected where the backend cannot."""

    async def words() -> AsyncIterator[bytes]:
        for word in (b"one ", b"two ", b"three"):
            yield word

    for caps in ({}, {"stdin_stream": False}):
        box = child(**caps)
        result = await run(box, box.caps, Command(["cat"], stdin=words(), timeout=30))
        assert result.stdout == b"one two three"


@given(st.binary(max_size=200), st.binary(max_size=50), st.lists(st.integers(1, 40), max_size=8), st.booleans())
def test_decoder_and_cuts(out: bytes, err: bytes, cuts: list[int], split: bool) -> None:
    """However the stream is cut into chunks, payload and trailer are the same."""
    nonce = "9f86d081884c7d659a2feaa0c55ad015"  # overlaps itself nowhere, as a random one

    async def check() -> None:
        output = Output(1 << 20)
        decoder = Decoder(nonce, split, output)
        tail = nonce.encode()
        streams: list[tuple[Any, bytes]] = (
            [("stdout", out + tail + b"O;"), ("stderr", err + tail + b"E7,t;later")]
            if split
            else [("stdout", out + tail + b"O;" + err + tail + b"E7,t;later")]
        )
        for name, data in streams:
            start = 0
            for size in [*cuts, len(data)]:
                decoder(name, data[start : start + size])
                start += size
        assert decoder.done.is_set()
        assert decoder.trailer is not None
        assert (decoder.trailer.code, decoder.trailer.flag) == (7, "t")
        assert output.finish() == (out, err)

    asyncio.run(check())


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=20))
def test_masker_and_cuts(data: bytes, cuts: list[int]) -> None:
    """A secret is masked wherever a chunk ends.

    Scenario: M02
    Mutation: mask each chunk by itself
    """
    data = data + b"secret" + data
    masker, start, got = Masker([b"secret", b"secret-longer"]), 0, b""
    for size in cuts:
        got += masker.feed(data[start : start + size])
        start += size
    got += masker.feed(data[start:]) + masker.feed(b"", last=True)
    assert got == data.replace(b"secret-longer", b"***").replace(b"secret", b"***")


def test_timeout_survives_pickling() -> None:
    """What came before the deadline crosses process borders with the error."""
    error = pickle.loads(pickle.dumps(ExecTimeout("late", stdout=b"part", stderr=b"x", tree_killed=False)))
    assert (error.stdout, error.stderr, error.tree_killed) == (b"part", b"x", False)
