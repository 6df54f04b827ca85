"""``openenv config`` and ``openenv completion``."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import config
from openenv_sandbox.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path


def test_each_setting_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values, where they come from, and no secret.

    Mutation: show values as they are
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openenv.toml").write_text('provider = "docker"\n')
    monkeypatch.setenv("OPENENV_PROVIDERS__DOCKER__HOST", "tcp://user:sekret-canary@host")
    monkeypatch.setenv("OPENENV_SPEC__PORT", "9000")
    assert run(["config", "--json"]) == 0
    shown = {one["setting"]: (one["value"], one["from"]) for one in json.loads(capsys.readouterr().out)}
    assert shown["provider"] == ("docker", str(tmp_path / "openenv.toml"))
    assert shown["spec.port"] == ("9000", "OPENENV_SPEC__PORT")
    assert "sekret-canary" not in str(shown)
    assert run(["config"]) == 0
    assert "spec.port\t9000\tOPENENV_SPEC__PORT" in capsys.readouterr().out


def test_a_file_that_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written once; every line that is uncommented is a setting that exists.

    Mutation: overwrite a file that exists
    """
    monkeypatch.chdir(tmp_path)
    assert run(["config", "init"]) == 0
    file = tmp_path / "openenv.toml"
    config.load()
    lines = [line.removeprefix("# ") for line in file.read_text().splitlines()[3:]]
    file.write_text("\n".join(lines))
    settings = config.load()
    assert settings.image_registry == "ghcr.io/me"
    assert config.load(profile="train").provider == "docker"
    assert run(["config", "init"]) == 2
    assert "exists" in capsys.readouterr().err
    assert file.read_text() == "\n".join(lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script of each shell; that of bash is valid."""
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_OPENENV_COMPLETE" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
