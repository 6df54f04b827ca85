"""The shell wrapper on every shell, with and without setsid, on rich and poor backends, by real processes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import _shell_wrapped
from openenv_sandbox.errors import CapabilityError, ExecError, ExecTimeout
from openenv_sandbox.shell import Command, run
from openenv_sandbox.testing.suite_raw import nap

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

SHELLS = {"dash": ("/bin/dash",), "bash": ("/bin/bash", "--posix"), "ash": ("busybox", "ash")}
BACKENDS: dict[str, dict[str, Any]] = {
    "rich": {},
    "poor": {"env": False, "cwd": False},
    "merged": {"split": False, "env": False, "cwd": False},
    "no-stdin": {"stdin": False, "stdin_stream": False, "env": False, "cwd": False, "puts": True},
    "small-stdin": {"max_stdin": 4096, "split": False},
    "text": {"binary": False, "split": False, "stream": False, "env": False, "cwd": False},
    "kills": {"kill": True, "split": False, "env": False, "cwd": False},
}
TREE = (
    "printf part; printf perr >&2; sleep {n} & (setsid sleep {n} || sleep {n}) 2>/dev/null & env -i sleep {n} & "
    "(trap '' TERM; sleep {n}) & sleep {n}"
)


@pytest.fixture(params=sorted(SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(SHELLS[request.param][0]) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture(params=["setsid", "no-setsid"])
def sandbox(request: pytest.FixtureRequest, shell: str, child: Any, tools: Callable[..., str]) -> Callable[..., Any]:
    """Makes a sandbox with this shell for a kind of backend."""
    without = () if request.param == "setsid" else ("setsid", "setpriv")
    path = tools(busybox=shell == "ash", without=without)

    def make(backend: str) -> Any:
        return child(shell=(shutil.which(SHELLS[shell][0]), *SHELLS[shell][1:]), path=path, **BACKENDS[backend])

    return make


def alive(seconds: int) -> int:
    """How many ``sleep seconds`` live anywhere on this machine."""
    found = subprocess.run(["pgrep", "-fc", f"^sleep {seconds}$"], capture_output=True, text=True)
    return int(found.stdout or 0)


async def sh(box: Any, script: str, **kw: Any) -> Any:
    options = {name: kw.pop(name) for name in ("on_output", "max_output", "secrets") if name in kw}
    return await run(box, box.caps, Command(["/bin/sh", "-c", script], timeout=kw.pop("timeout", 30), **kw), **options)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
async def test_everything_a_backend_lacks(sandbox: Callable[..., Any], backend: str) -> None:
    """Streams, exit code, variables, folder and input are the same on every backend and shell.

    Scenario: F03
    Mutation: the wrapper sends the command's stderr to stdout where the backend merges them
    """
    value = "x 'y' \"z\" $HOME\n `id` \\ é€ "
    result = await sh(
        sandbox(backend), 'printf %s "$V"; printf "%s|" "$(pwd -P)" >&2; cat >&2; exit 7',
        env={"V": value, "IFS": "x", "PATH": "/usr/bin:/bin"}, cwd="/usr", stdin=b"in\0put",
    )  # fmt: skip
    assert (result.exit_code, result.text(), result.stderr) == (7, value, b"/usr|in\0put")


@pytest.mark.parametrize("backend", ["rich", "merged", "no-stdin", "text"])
async def test_deadline_ends_the_tree(sandbox: Callable[..., Any], backend: str) -> None:
    """At the deadline nothing of the tree is left, and the output so far is on the error.

    Scenario: F03
    Mutation: the wrapper's timer kills only the command itself
    """
    number = int(nap())
    with pytest.raises(ExecTimeout) as caught:
        await sh(sandbox(backend), TREE.format(n=number), timeout=0.3, grace=0.2)
    assert (caught.value.stdout, caught.value.stderr[:4]) == (b"part", b"perr")
    assert caught.value.tree_killed
    assert alive(number) == 0


@pytest.mark.parametrize("backend", ["merged", "text"])
async def test_output_of_a_wrapper_that_was_killed(
    sandbox: Callable[..., Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the deadline inside comes too late, what the command wrote is fetched all the same, and no file is left.

    Mutation: `_collect` is not called
    """
    monkeypatch.setattr(_shell_wrapped, "BACKSTOP_S", 3.0)
    box = sandbox(backend)
    monkeypatch.setattr(_shell_wrapped.Wrapped, "_backstop", lambda self: 1.5)
    with pytest.raises(ExecTimeout) as caught:
        await sh(box, "printf part; printf perr >&2; exec sleep 600", timeout=500)
    assert (caught.value.stdout, caught.value.stderr) == (b"part", b"perr")
    assert not [path for path in box.folder.iterdir() if path.name.startswith(".oe-")]


@pytest.mark.parametrize("backend", ["rich", "merged"])
async def test_cancel_ends_the_tree(sandbox: Callable[..., Any], backend: str) -> None:
    """Cancelling, twice as well, leaves no process.

    Scenario: F19
    Mutation: cancellation does not send the second command that kills
    """
    number = int(nap())
    started = asyncio.Event()
    task = asyncio.ensure_future(
        sh(sandbox(backend), TREE.format(n=number), timeout=None, on_output=lambda name, data: started.set())
    )
    await started.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(number) == 0


@pytest.mark.parametrize("backend", ["rich", "merged", "kills", "text"])
async def test_background_process_lives(sandbox: Callable[..., Any], backend: str) -> None:
    """A process left in the background neither holds the call nor is killed by it.

    Scenario: F12
    Mutation: wait for the end of the backend's stream instead of the trailer
    """
    number = int(nap())
    result = await sh(sandbox(backend), f"sleep {number} & echo on")
    assert result.stdout == b"on\n"
    assert alive(number) == 1


@pytest.mark.parametrize("backend", ["rich", "merged", "no-stdin", "kills", "text"])
@pytest.mark.parametrize("script", ["exit 0", "exit 7", "kill -9 $$", "kill $$", "printf x; kill -9 $$"])
async def test_exit_codes(sandbox: Callable[..., Any], backend: str, script: str) -> None:
    """An exit code is always a number: a signal is 128 plus its number.

    Scenario: F05
    Mutation: take a missing exit code for 0
    """
    want = {"exit 0": 0, "exit 7": 7, "kill $$": 143}.get(script, 137)
    assert (await sh(sandbox(backend), script)).exit_code == want


async def test_ctrl_c_is_not_ignored(sandbox: Callable[..., Any]) -> None:
    """The command can be interrupted: it is not started as a shell's background job."""
    script = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    result = await run(sandbox("rich"), sandbox("rich").caps, Command(["python3", "-c", script], timeout=30))
    assert result.exit_code == 130
    assert b"KeyboardInterrupt" in result.stderr


async def test_nothing_of_the_timer_is_left(sandbox: Callable[..., Any]) -> None:
    """The deadline's sleep ends with the command."""
    box, seconds = sandbox("rich"), int(nap())
    await asyncio.gather(*(sh(box, "true", timeout=seconds) for _ in range(5)))
    for _ in range(400):  # it is told to end when the command has ended, and may still be on its way out
        if not alive(seconds):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a timer outlived its command")


@pytest.mark.parametrize("backend", sorted(BACKENDS))
async def test_output_is_bytes(sandbox: Callable[..., Any], backend: str) -> None:
    """Every byte arrives as it was written, on both streams, also where the backend answers in text.

    Scenario: F09
    Mutation: the wrapper does not encode for a backend that delivers text
    """
    data = b"\r\n \0" + bytes(range(256)) * 700 + b"\xff\r\n\n "
    result = await sh(sandbox(backend), "tee copy; cat copy >&2", stdin=data)
    assert (result.stdout, result.stderr) == (data, data)


async def test_text_without_base64(shell: str, child: Any, tools: Callable[..., str]) -> None:
    """od encodes where base64 is missing; where both are, the command does not run."""
    argv = (shutil.which(SHELLS[shell][0]), *SHELLS[shell][1:])
    for without in (("base64",), ("base64", "od")):
        box = child(shell=argv, path=tools(busybox=shell == "ash", without=without), **BACKENDS["text"])
        if "od" not in without:
            assert (await sh(box, r"printf '\000\377\r\n'")).stdout == b"\0\xff\r\n"
            continue
        with pytest.raises(ExecError, match="encodes"):
            await sh(box, "touch ran")
        assert not (box.folder / "ran").exists()


@pytest.mark.parametrize("backend", ["rich", "merged"])
async def test_errors_before_the_command(sandbox: Callable[..., Any], backend: str) -> None:
    """A missing program, folder or user is an error of its own, and the command does not run."""
    box = sandbox(backend)
    caps = box.caps
    with pytest.raises(ExecError, match="nosuch"):
        await run(box, caps, Command(["nosuch"], timeout=30))
    if not caps.cwd:
        with pytest.raises(ExecError, match="/nope"):
            await run(box, caps, Command(["true"], cwd="/nope", timeout=30))
    with pytest.raises(CapabilityError, match="nobody-here"):
        await run(box, caps, Command(["touch", "ran"], user="nobody-here", timeout=30))
    assert not (box.folder / "ran").exists()


async def test_other_user(sandbox: Callable[..., Any], shell: str) -> None:
    """A command runs as another user by setpriv or su, whichever is there."""
    if shell == "ash":
        pytest.skip("Debian's busybox has neither setpriv nor su")
    box = sandbox("poor")
    box.folder.parent.chmod(0o755)
    result = await run(box, box.caps, Command(["/usr/bin/id", "-un"], user="nobody", cwd="/", timeout=30))
    assert result.text() == "nobody\n"
    uid = await run(box, box.caps, Command(["/usr/bin/id", "-u"], user="0", timeout=30))
    assert uid.text() == "0\n"
