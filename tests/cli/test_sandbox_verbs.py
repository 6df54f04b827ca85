"""The verbs that use a sandbox somebody left running: exec, logs, cp, ps, attach, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ECHO = str(Path(__file__).parents[2] / "envs" / "echo_env")
OPENENV = [sys.executable, "-m", "openenv_sandbox.cli"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One state folder for the module: the sandbox is there from test to test."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENENV_")}
    return {**clean, "OPENENV_STATE_DIR": str(tmp_path_factory.mktemp("state"))}


@pytest.fixture(scope="module")
def openenv(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    def call(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*OPENENV, *args], env=environment, input=stdin, capture_output=True, timeout=120)

    return call


@pytest.fixture(scope="module")
def box(openenv: Callable[..., subprocess.CompletedProcess[bytes]]) -> Iterator[str]:
    """A detached echo environment, by its ref."""
    done = openenv("launch", ECHO, "--detach", "--json")
    assert done.returncode == 0, done.stderr.decode()
    ref = json.loads(done.stdout)["ref"]
    yield ref
    openenv("stop", "--all")


def test_detached(openenv: Callable[..., subprocess.CompletedProcess[bytes]], box: str) -> None:
    """It outlives its launcher and is listed with what its id belongs to.

    Mutation: delete what is to be detached
    """
    (row,) = json.loads(openenv("ps", "--json").stdout)
    assert row["ref"] == box
    assert row["expires"] > time.time()
    shown = openenv("ps", "--scope").stdout.decode().splitlines()
    assert shown[0].split("\t")[-1] == "scope"
    assert row["scope"] in shown[1]


def test_exec(openenv: Callable[..., subprocess.CompletedProcess[bytes]], box: str) -> None:
    """Streams apart and byte for byte, the exit code, input, variables and folder.

    Mutation: exit with 0 whatever the command did
    """
    done = openenv("exec", box, "printf 'a\\377'; printf b >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"a\xff", b"b", 7)
    done = openenv("exec", "-i", box, "cat", stdin=b"x\0y" * 50_000)
    assert (done.stdout, done.returncode) == (b"x\0y" * 50_000, 0)
    assert openenv("exec", box, "cat", stdin=b"not passed on").stdout == b""
    done = openenv("exec", "-e", "A=b c", "-w", "/tmp", box, "--", "sh", "-c", 'echo "$A" "$PWD" "$1"', "-", "-x")
    assert done.stdout == b"b c /tmp -x\n"
    done = openenv("exec", "--timeout", "0.3", box, "sleep 60")
    assert done.returncode == 1
    assert b"0.3" in done.stderr


def test_cp(openenv: Callable[..., subprocess.CompletedProcess[bytes]], box: str, tmp_path: Path) -> None:
    """A file and a folder, in and out again; two local sides are a usage error."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "data").write_bytes(os.urandom(100_000))
    assert openenv("cp", str(folder / "data"), f"{box}:/tmp/data").returncode == 0
    assert openenv("cp", f"{box}:/tmp/data", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out").read_bytes() == (folder / "data").read_bytes()
    assert openenv("cp", str(folder), f"{box}:/tmp/tree").returncode == 0
    assert openenv("exec", box, "cmp /tmp/tree/data /tmp/data").returncode == 0
    assert openenv("cp", "a", "b").returncode == 2
    missing = openenv("cp", f"{box}:/tmp/nothing", str(tmp_path / "x"))
    assert missing.returncode == 1
    assert b"/tmp/nothing" in missing.stderr


def test_logs(
    openenv: Callable[..., subprocess.CompletedProcess[bytes]], box: str, environment: dict[str, str]
) -> None:
    """What the server wrote, its last lines, and what it writes while somebody looks.

    Mutation: show the whole log again at each look
    """
    whole = openenv("logs", box).stdout
    assert b"Application startup complete" in whole
    assert openenv("logs", "-n", "1", box).stdout == whole.splitlines(keepends=True)[-1]
    # Not a terminal, so the first line is there only when it is written: the access log of a request of ours.
    follower = subprocess.Popen([*OPENENV, "logs", "-f", "-n", "1", box], env=environment, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline() == whole.splitlines(keepends=True)[-1]
        url = whole.rpartition(b"socket (")[2].partition(b")")[0].decode()
        host, port = url.replace("'", "").split(", ")
        httpx.get(f"http://{host}:{port}/nothing-of-this-name", trust_env=False)
        assert b"/nothing-of-this-name" in follower.stdout.readline()
    finally:
        follower.send_signal(signal.SIGINT)
        out, _ = follower.communicate(timeout=30)
    assert out == b""


def test_names_that_fit_nothing(openenv: Callable[..., subprocess.CompletedProcess[bytes]], box: str) -> None:
    """Told with what to do, by every verb."""
    for args in (["exec", "nothing", "true"], ["logs", "nothing"], ["cp", "nothing:/a", "b"], ["attach", "nothing"]):
        done = openenv(*args)
        assert done.returncode == 2, args
        assert b"openenv ps" in done.stderr


def test_attach(
    openenv: Callable[..., subprocess.CompletedProcess[bytes]], box: str, environment: dict[str, str]
) -> None:
    """The sandbox is held from now on, and gone after Ctrl-C; last in the module.

    Mutation: only use the sandbox
    """
    holder = subprocess.Popen(
        [*OPENENV, "attach", "--json", box], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert holder.stdout is not None
    row = json.loads(holder.stdout.readline())
    assert row["ref"] == box
    (listed,) = json.loads(openenv("ps", "--json").stdout)
    assert listed["owner"] == "alive"
    holder.send_signal(signal.SIGINT)
    holder.stdout.close()
    assert holder.wait(60) == 130
    assert json.loads(openenv("ps", "--json").stdout) == []
    gone = openenv("exec", box, "true")
    assert gone.returncode == 2
