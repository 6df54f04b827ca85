"""``openenv serve --web``."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from openenv_sandbox.cli import serve
from openenv_sandbox.cli.main import run

ECHO = str(Path(__file__).parents[2] / "envs" / "echo_env")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server would have been started with."""
    found: dict[str, Any] = {}

    def start(argv: list[str], environment: dict[str, str], cwd: Path) -> int:
        found.update(argv=argv, environment=environment)
        return 0

    monkeypatch.setattr(serve, "_run", start)
    monkeypatch.delenv("ENABLE_WEB_INTERFACE", raising=False)
    return found


def test_the_page_is_switched_on_and_its_address_printed(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: leave the variable out of the server's environment"""
    assert run(["serve", ECHO, "--web", "-p", "8123", "--host", "0.0.0.0"]) == 0
    assert started["environment"]["ENABLE_WEB_INTERFACE"] == "true"
    printed = "".join(capsys.readouterr())
    assert "the page: http://localhost:8123/web\n" in printed


def test_a_token_is_named_and_not_printed(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", "sesame-canary")
    assert run(["serve", ECHO, "--web"]) == 0
    printed = "".join(capsys.readouterr())
    assert "/web; it asks for the OPENENV_AUTH_TOKEN" in printed
    assert "canary" not in printed


def test_without_the_option_there_is_no_page(started: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", ECHO]) == 0
    assert "ENABLE_WEB_INTERFACE" not in started["environment"]
    assert "the page" not in "".join(capsys.readouterr())


def test_several_workers_have_no_page(started: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", ECHO, "--web", "--workers", "2"]) == 2
    assert "--web needs one worker" in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_port_zero_is_a_free_port(
    started: dict[str, Any], capsys: pytest.CaptureFixture[str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the address that is printed is one a browser takes.

    Mutation: take 0 for no port
    """
    monkeypatch.setattr(serve, "_free", lambda host: 12345)
    assert run(["serve", ECHO, "-p", "0", "--host", host]) == 0
    assert started["argv"][-1] == "12345"
    named = f"[{host}]" if ":" in host else host
    assert f"http://{named}:12345 " in "".join(capsys.readouterr())


def test_a_free_port_is_none_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", serve._free("127.0.0.1"))) as listener:
        assert serve._free("127.0.0.1") != listener.getsockname()[1]
