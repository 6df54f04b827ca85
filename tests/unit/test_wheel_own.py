"""The wheel of the running installation: what a build back end would make, from the files that run."""

from __future__ import annotations

import csv
import email
import io
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from openenv_sandbox import wheel
from openenv_sandbox.errors import BuildError

REPO = Path(__file__).resolve().parents[2]


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_it_is_a_valid_wheel(tmp_path: Path) -> None:
    path = wheel.own_wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        record = {row[0]: row[2] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
        assert {name: str(archive.getinfo(name).file_size) for name in archive.namelist()} == {
            **record,
            f"{info}/RECORD": str(archive.getinfo(f"{info}/RECORD").file_size),
        }
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert path.name == f"openenv-{metadata['Version']}-py3-none-any.whl"
    assert "docker = openenv_providers.docker:DockerProvider" in entry_points
    assert "pydantic" in " ".join(metadata.get_all("Requires-Dist") or [])
    assert not [name for name in names(path) if name.endswith((".pyc", ".pth")) or "direct_url" in name]


def test_equal_content_makes_equal_bytes(tmp_path: Path) -> None:
    first, second = wheel.own_wheel(tmp_path / "a"), wheel.own_wheel(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    made = first.stat().st_mtime_ns
    assert wheel.own_wheel(tmp_path / "a").stat().st_mtime_ns == made


def test_other_content_is_another_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = wheel.own_wheel(tmp_path)
    files = wheel._files()
    changed = {**files, "openenv_sandbox/extra.py": tmp_path / "extra.py"}
    (tmp_path / "extra.py").write_text("x = 1\n")
    monkeypatch.setattr(wheel, "_files", lambda: changed)
    after = wheel.own_wheel(tmp_path)
    assert after.parent != before.parent
    assert names(after) - names(before) == {"openenv_sandbox/extra.py"}
    (tmp_path / "extra.py").write_text("x = 2\n\n")
    assert wheel.own_wheel(tmp_path).parent != after.parent


def test_no_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel, "DISTRIBUTION", "openenv-that-is-not-installed")
    with pytest.raises(BuildError, match="no installation"):
        wheel.own_wheel(tmp_path)


@pytest.mark.full
def test_it_installs_and_holds_what_the_back_end_would_pack(tmp_path: Path) -> None:
    path = wheel.own_wheel(tmp_path / "w")
    venv.create(tmp_path / "v", with_pip=True, symlinks=True)
    python = tmp_path / "v" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", path], check=True)
    code = (
        "import openenv_sandbox as o, importlib.metadata as m; print(o.__version__, m.version('openenv'), o.__file__)"
    )
    done = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split()[0] == done.stdout.split()[1]
    assert str(tmp_path / "v") in done.stdout
    assert (tmp_path / "v" / "bin" / "openenv").exists()
    again = "from openenv_sandbox import wheel; print(wheel.own_wheel('again'))"
    done = subprocess.run([python, "-I", "-c", again], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert (tmp_path / done.stdout.strip()).read_bytes() == path.read_bytes()
    built = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "built", REPO]
    subprocess.run([str(word) for word in built], check=True)
    other = next((tmp_path / "built").glob("*.whl"))
    assert names(path) == names(other)
