from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.cli.main import run
from openenv_sandbox.cli.ps import _span
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import SandboxRef

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def journal_row(state_dir: object) -> Callable[..., str]:
    """Writes a row of a run that is this process's, and returns its key."""

    def write(provider: str = "local", scope: str = "somewhere", ref_id: str | None = "box1") -> str:
        async def go() -> str:
            journal = await Journal.open()
            key = journal.new_key()
            await journal.intent(key, provider, scope, settle_until=time.time(), note="a test")
            if ref_id:
                await journal.created(SandboxRef(provider, scope, ref_id, key))
            return key

        return asyncio.run(go())

    return write


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    from openenv_sandbox.cli.main import VERBS

    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)


@pytest.mark.parametrize("verb", ["providers", "run", "launch", "ps", "stop", "gc", "serve"])
def test_each_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert "Usage: openenv" in capsys.readouterr().out


def test_a_misspelt_verb_is_a_usage_error_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lunch"]) == 2
    assert "did you mean 'launch'" in capsys.readouterr().err


def test_providers_as_json_needs_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["providers", "--json"]) == 0
    infos = {info["name"]: info for info in json.loads(capsys.readouterr().out)}
    assert {"local", "docker"} <= set(infos)
    assert infos["docker"]["extra"] == "docker"


def test_providers_in_a_pipe_are_tab_separated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["providers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[0] == "name"
    assert len({line.count("\t") for line in lines}) == 1


def test_an_unknown_provider_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["providers", "dockr"]) == 2
    assert "docker" in capsys.readouterr().err


def test_run_checks_its_actions_before_it_launches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "./nowhere", "--action", "{"]) == 2
    assert run(["run", "./nowhere", "--action", "[1]"]) == 2
    assert run(["run", "./nowhere", "--action", "@/no/such/file"]) == 2
    assert run(["run"]) == 2
    assert run(["run", "./x", "--url", "http://127.0.0.1:1"]) == 2
    assert "launching" not in capsys.readouterr().err


def test_run_names_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "./nowhere", "--provider", "local"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_secret_is_read_from_the_environment_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    assert run(["run", "./nowhere", "--secret", "NOT_THERE"]) == 2
    assert "$NOT_THERE is not set" in capsys.readouterr().err


def test_run_against_a_dead_url_fails_with_what_was_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--url", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-v", "run", "--url", "http://127.0.0.1:9"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ps_shows_rows(journal_row: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    key = journal_row()
    assert run(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["ref"], row["state"], row["owner"], row["key"]) == ("local:box1", "created", "alive", key)
    assert run(["ps", "--provider", "docker", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_stop_wants_a_name_that_it_knows(journal_row: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    journal_row()
    assert run(["stop"]) == 2
    assert run(["stop", "local:bax1"]) == 2
    assert "did you mean 'local:box1'" in capsys.readouterr().err


def test_stop_leaves_a_row_of_another_scope(
    journal_row: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    journal_row(scope="another machine")
    assert run(["stop", "local:box1"]) == 1
    assert "another machine" in capsys.readouterr().err
    assert run(["ps", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_gc_refuses_an_age_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "--older-than", "soon"]) == 2
    assert "is not an age" in capsys.readouterr().err


def test_gc_with_nothing_to_do_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc"]) == 0
    assert "nothing to remove" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (90, "1m30s"), (7200, "2h"), (90061, "1d1h"), (-65, "-1m5s")]
)
def test_spans(seconds: float, text: str) -> None:
    assert _span(seconds) == text


def test_the_check_uses_what_is_configured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_PROVIDERS__DOCKER__HOST", "unix:///no/such/docker.sock")
    assert run(["providers", "docker", "--check"]) == 3
    assert "/no/such/docker.sock" in capsys.readouterr().out


def test_ps_of_an_unknown_backend_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ps", "--provider", "dockr"]) == 2
    assert "docker" in capsys.readouterr().err
