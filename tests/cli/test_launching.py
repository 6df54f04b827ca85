"""The verbs that launch, as processes: what they print, and what signals do to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ECHO = str(Path(__file__).parents[2] / "envs" / "echo_env")
OPENENV = [sys.executable, "-m", "openenv_sandbox.cli"]
ACTION = '{"type":"call_tool","tool_name":"echo_message","arguments":{"message":"Hello, World!"}}'


def openenv(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OPENENV, *args], capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False
    )


def rows() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(openenv("ps", "--json").stdout)
    return found


@pytest.fixture
def launched() -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A process that keeps an environment, and what it printed."""
    process = subprocess.Popen(
        [*OPENENV, "launch", ECHO, "--provider", "local", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_run_prints_a_line_for_each_call() -> None:
    done = openenv("run", ECHO, "--action", ACTION, OPENENV_PROVIDER="local")
    assert done.returncode == 0, done.stderr
    reset, step, state = map(json.loads, done.stdout.splitlines())
    assert reset["observation"]["echoed_message"] == "Echo environment ready!"
    assert step["observation"]["result"]["data"] == "Hello, World!"
    assert state["state"]["step_count"] == 1
    assert rows() == []


def test_run_tells_an_error_of_the_environment_by_its_exit_code() -> None:
    done = openenv("run", ECHO, "--action", '{"type":"nonsense"}', OPENENV_PROVIDER="local")
    assert done.returncode == 5, done.stderr
    assert "VALIDATION_ERROR" in done.stderr
    assert rows() == []


def test_run_refuses_what_the_backend_cannot_do_before_it_creates() -> None:
    done = openenv("run", ECHO, "--gpus", "H100", OPENENV_PROVIDER="local")
    assert done.returncode == 4, done.stderr
    assert "creating the sandbox" not in done.stderr


def test_another_shell_uses_what_launch_printed(launched: tuple[subprocess.Popen[str], dict[str, str]]) -> None:
    _, told = launched
    done = openenv("run", "--url", told["url"], "--action", ACTION, OPENENV_AUTH_TOKEN=told["token"])
    assert done.returncode == 0, done.stderr
    refused = openenv("run", "--url", told["url"])
    assert refused.returncode != 0
    assert "401" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_removes_the_sandbox(
    launched: tuple[subprocess.Popen[str], dict[str, str]], number: signal.Signals
) -> None:
    """Nothing is left, and the exit code says that it was interrupted.

    Scenario: A02 A03
    Mutation: leave SIGTERM to its default, or do not await the cleanup when the verb is cancelled
    """
    process, told = launched
    assert [row["ref"] for row in rows()] == [told["ref"]]
    process.send_signal(number)
    assert process.wait(60) == 130
    assert rows() == []


def test_stop_from_another_shell_ends_it(launched: tuple[subprocess.Popen[str], dict[str, str]]) -> None:
    process, told = launched
    done = openenv("stop", told["ref"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == told["ref"]
    assert process.wait(60) == 1
    assert rows() == []


def test_serve_answers_and_ends_with_its_signal(tmp_path: Path) -> None:
    import socket
    import time
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*OPENENV, "serve", ECHO, "-p", str(port)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise AssertionError("the server never answered")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
