"""``openenv init``: what it writes works by itself, and what it refuses changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openenv_sandbox.authoring.scaffold import check_name, scaffold
from openenv_sandbox.cli.main import run
from openenv_sandbox.errors import ConfigError

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", ["demo_env", "a", "zoo_of_many_old_elephant"])
def test_a_new_environment_passes_its_own_tests_and_lint(name: str, tools: bool, tmp_path: Path) -> None:
    """In its own folder, with no further file, and its client speaks to its server.

    Mutation: leave a template's mark unfilled
    """
    folder = scaffold(name, tmp_path, tools=tools)
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not [text for text in texts if "__Prefix__" in text or "__title__" in text or "__dashed__" in text]
    assert 'if __name__ == "__main__"' in (folder / "server" / "app.py").read_text()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENENV_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for arguments in (["check", "--select", "E,F,W,I,B,UP"], ["format", "--check"]):
        lint = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."], cwd=folder, capture_output=True, text=True
        )
        assert lint.returncode == 0, lint.stdout


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the folder and what to do next; a folder with something in it is left alone.

    Mutation: write into a folder that exists
    """
    assert run(["init", "demo_env", "-o", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(tmp_path / "demo_env")
    assert "openenv validate" in err
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run(["init", "demo_env", "--tools", "-o", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("my-env", "init my_env"),
        ("My Env!", "init my_env"),
        ("class", "init class_env"),
        ("json", "init json_env"),
        ("3d", "init env_3d"),
        ("--", "init my_env"),
        ("../up", "init up"),
        ("models", "my_env"),
        ("a" * 25, "image"),
    ],
)
def test_names_that_cannot_be(name: str, hint: str, tmp_path: Path) -> None:
    """Refused with one that can, before anything is written."""
    with pytest.raises(ConfigError) as caught:
        scaffold(name, tmp_path)
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    assert not list(tmp_path.iterdir())
    check_name("demo_env")


def test_what_cannot_be_written_whole_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: told, and the name can be used again when there is room.

    Mutation: leave the files that were written before
    """
    real = Path.write_text

    def write(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name == "models.py":
            raise OSError(28, "No space left on device")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(ConfigError, match="No space left"):
        scaffold("demo_env", tmp_path)
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    assert (scaffold("demo_env", tmp_path) / "models.py").is_file()
    (tmp_path / "link_env").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="link_env"):
        scaffold("link_env", tmp_path)
    assert (tmp_path / "link_env").is_symlink()
