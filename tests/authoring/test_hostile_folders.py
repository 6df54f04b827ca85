"""Folders with links that lead out, odd names and great depth: nothing of this machine is read, written or removed."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import _context, _paths, fetching
from openenv_sandbox.authoring.scaffold import scaffold
from openenv_sandbox.errors import ImageError
from openenv_sandbox.fetching import fetch
from openenv_sandbox.image import parse
from openenv_sandbox.staging import INSTALL_DIR, staged
from tests.authoring.hub_standin import Hub, Space, served
from tests.authoring.test_push import openenv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hub() -> Iterator[Hub]:
    with served() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scaffold("game_env", tmp_path / "work")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    file = tmp_path / "private"
    file.write_text("FROM secret\n")
    return file


@pytest.mark.parametrize("name", ["notes.txt", "README.md", "openenv.link"])
def test_no_file_from_outside_is_pushed(hub: Hub, folder: Path, private: Path, name: str) -> None:
    """A link that leads out of the folder is refused with its name, before anything is created or written.

    Mutation: read through links; write the README through the one of that name
    """
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(private)
    before = private.read_text()
    done = openenv(hub, "push", str(folder))
    assert done.returncode == 2, done.stderr
    assert name in done.stderr
    assert not hub.spaces
    assert private.read_text() == before
    done = openenv(hub, "push", str(folder), "--exclude", name)
    assert done.returncode == (2 if name == "README.md" else 0), done.stderr


def test_links_inside_are_pushed_as_files(hub: Hub, folder: Path) -> None:
    """The hub has no links of its own; one to a folder or to nothing is refused rather than left out silently."""
    (folder / "again.py").symlink_to("models.py")
    assert openenv(hub, "push", str(folder)).returncode == 0
    assert hub.spaces["me/game-env"].files["again.py"] == (folder / "models.py").read_bytes()
    for target in ("server", "nothing"):
        (folder / "odd").symlink_to(target)
        done = openenv(hub, "push", str(folder))
        assert done.returncode == 2
        assert "odd" in done.stderr
        (folder / "odd").unlink()


@pytest.mark.anyio
async def test_staging_never_writes_through_a_link(folder: Path, tmp_path: Path) -> None:
    """The Dockerfile may lie in a folder that is a link, and what staging adds may have the name of one.

    Mutation: unlink and write the Dockerfile wherever its folder leads
    """
    other = tmp_path / "other"
    other.mkdir()
    (other / "Dockerfile").write_text("FROM python:3.11-slim\nCMD true\n")
    (folder / "Dockerfile").unlink()
    (folder / "server").rename(folder / "kept")
    (folder / "server").symlink_to(other)
    with pytest.raises(ImageError, match="server"):
        async with staged(parse(str(folder))):
            pass
    assert sorted(os.listdir(other)) == ["Dockerfile"]
    assert (other / "Dockerfile").read_text().startswith("FROM python")


@pytest.mark.anyio
async def test_a_folder_named_like_what_is_added(folder: Path) -> None:
    (folder / INSTALL_DIR).mkdir()
    (folder / INSTALL_DIR / "x").touch()
    with pytest.raises(ImageError, match=INSTALL_DIR):
        async with staged(parse(str(folder))):
            pass


def test_names_and_targets_of_any_bytes(folder: Path) -> None:
    """File names and link targets need not be UTF-8.

    Mutation: encode a link's target strictly
    """
    first = parse(str(folder)).digest
    os.symlink(b"\xff\xfe", os.fsencode(folder) + b"/l\xff")
    assert parse(str(folder)).digest != first


def test_a_name_that_the_hub_cannot_have_is_refused_first(hub: Hub, folder: Path) -> None:
    """Mutation: create the Space, fail, and delete it again"""
    with open(os.fsencode(folder) + b"/f\xff", "wb"):
        pass
    done = openenv(hub, "push", str(folder))
    assert done.returncode == 2
    assert "f\\xff" in done.stderr
    assert "creating" not in done.stderr


def test_a_context_deeper_than_the_stack(tmp_path: Path) -> None:
    """Mutation: walk by recursion"""
    top = tmp_path / "top"
    top.mkdir()
    script = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').close()"
    subprocess.run(["python3", "-c", script], cwd=top, check=True)
    try:
        ((name, _),) = _context.walk(top, _context.Ignore([]))
        assert name == "d/" * 1200 + "f"
    finally:
        _paths.remove_tree(top)  # pytest removes old folders by recursion


@pytest.fixture
def far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose address is a folder here."""
    (folder.parent / "in_repo").write_text("x")
    _git(folder.parent, "init", "-q", "-b", "main")
    _git(folder.parent, "config", "uploadpack.allowAnySHA1InWant", "true")
    real = fetching._git

    def here(*args: str, **how: Any) -> str:
        return real(*(str(folder.parent) if a == "https://h.example/r" else a for a in args), **how)

    monkeypatch.setattr(fetching, "_git", here)
    return folder


def _git(where: Path, *args: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@h.example")
    subprocess.run(["git", *who, *args], cwd=where, check=True, capture_output=True)


ADDRESS = "git+https://h.example/r"


@pytest.mark.parametrize("where", ["file", "folder", "subfolder"])
def test_a_fetched_folder_has_no_way_out(far: Path, private: Path, where: str) -> None:
    """Links inside the repository are kept; one that leads out of it is refused, the subfolder itself included.

    Mutation: follow whatever the repository links to
    """
    (far / "inside").symlink_to("../in_repo")
    sub = "game_env"
    if where == "file":
        (far / "server" / "README").symlink_to(private)
    elif where == "folder":
        (far / "data").symlink_to("../../..")
    else:
        sub = "sub"
        (far.parent / sub).symlink_to(private.parent)
    _git(far.parent, "add", "-A")
    _git(far.parent, "commit", "-qm", "one")
    with pytest.raises(ImageError, match="leads out"):
        fetch(f"{ADDRESS}#subdirectory={sub}", trust=True)


def test_a_fetch_leaves_the_repository_it_is_called_in_alone(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git hook has variables that point git at the hook's own repository.

    Mutation: pass GIT_DIR on
    """
    _git(far.parent, "add", "-A")
    _git(far.parent, "commit", "-qm", "one")
    mine = tmp_path / "mine"
    mine.mkdir()
    _git(mine, "init", "-q", "-b", "main")
    (mine / "own").write_text("own")
    _git(mine, "add", "-A")
    _git(mine, "commit", "-qm", "mine")
    before = (mine / ".git" / "HEAD").read_text()
    for name, value in (("GIT_DIR", ".git"), ("GIT_WORK_TREE", ""), ("GIT_INDEX_FILE", ".git/index")):
        monkeypatch.setenv(name, str(mine / value))
    found, _ = fetch(f"{ADDRESS}#subdirectory=game_env", trust=True)
    assert (found / "openenv.yaml").is_file()
    assert sorted(os.listdir(mine)) == [".git", "own"]
    assert (mine / ".git" / "HEAD").read_text() == before


def test_what_a_killed_fetch_left_is_removed(far: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, when nobody can be at it any more.

    Mutation: leave .partial- folders for ever; remove one that is being written
    """
    _git(far.parent, "add", "-A")
    _git(far.parent, "commit", "-qm", "one")
    cache = fetching._cache()
    old, new = cache / ".partial-old", cache / ".partial-new"
    for path in (old, new):
        path.mkdir(parents=True)
        (path / "f").touch()
    os.utime(old, (0, 0))
    fetch(f"{ADDRESS}#subdirectory=game_env", trust=True)
    assert not old.exists()
    assert new.exists()


def test_a_state_folder_that_cannot_be_written(far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told in words, with the folder.

    Mutation: let the OSError through
    """
    _git(far.parent, "add", "-A")
    _git(far.parent, "commit", "-qm", "one")
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPENENV_STATE_DIR", str(tmp_path / "file"))
    with pytest.raises(ImageError, match="sources"):
        fetch(f"{ADDRESS}#subdirectory=game_env", trust=True)


def test_a_space_that_is_unread(hub: Hub, folder: Path) -> None:
    """A file that may not be read is named.

    Mutation: let the OSError through
    """
    hub.spaces["me/game-env"] = Space(files={})
    (folder / "Dockerfile").unlink()
    (folder / "Dockerfile").mkdir()
    done = openenv(hub, "push", str(folder))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
