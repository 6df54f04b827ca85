"""``openenv push`` and ``fork`` by the hub's own client, in a process of its own, against a stand-in hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from openenv_sandbox.authoring.scaffold import scaffold
from tests.authoring.hub_standin import TOKEN, Hub, Space, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "value-of-the-secret"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with served() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scaffold("game_env", tmp_path)


def openenv(hub: Hub, *args: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "OPENENV_"))}
    env = {
        **clean,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": os.environ["OPENENV_STATE_DIR"],
        "HF_HUB_DISABLE_XET": "1",
        "OPENENV_STATE_DIR": os.environ["OPENENV_STATE_DIR"],
        "OPENENV_BASE_IMAGE": "only-here:local",
        "API_KEY": SECRET,
        **({"HF_TOKEN": token} if token else {}),
    }
    done = subprocess.run(
        [sys.executable, "-m", "openenv_sandbox.cli", *args], env=env, capture_output=True, text=True, timeout=120
    )
    assert TOKEN not in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done


def test_a_new_space(hub: Hub, folder: Path) -> None:
    """Created with what was asked for; the Dockerfile installs our wheel, and the base is the author's.

    Mutation: push without the wheel; push the local base image
    """
    args = ["--private", "-H", "cpu-basic", "-e", "MODE=fast", "-s", "API_KEY"]
    done = openenv(hub, "push", str(folder), *args)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.url}/spaces/me/game-env"
    space = hub.spaces["me/game-env"]
    assert (space.private, space.hardware, space.sdk) == (True, "cpu-basic", "docker")
    assert (space.variables, space.secrets) == ({"MODE": "fast"}, {"API_KEY": SECRET})
    names = set(space.files)
    assert {"Dockerfile", "README.md", "openenv.yaml", "server/app.py", "models.py"} <= names
    assert not [name for name in names if "tests" in name or "__pycache__" in name or name == ".dockerignore"]
    (wheel,) = [name for name in names if name.endswith(".whl")]
    dockerfile = space.files["Dockerfile"].decode()
    assert wheel.rpartition("/")[2] in dockerfile
    assert "python:3.11-slim" in dockerfile
    assert "only-here" not in dockerfile
    assert "ENV ENABLE_WEB_INTERFACE=true" in dockerfile
    readme = space.files["README.md"].decode()
    front = yaml.safe_load(readme.split("---\n")[1])
    assert (front["sdk"], front["app_port"], front["base_path"], front["tags"]) == ("docker", 8000, "/web", ["openenv"])
    assert "# game_env" in readme


def test_an_update(hub: Hub, folder: Path) -> None:
    """Files, variables and secrets change, other files stay unless named, the author's front matter is kept.

    Mutation: delete what is not in the folder
    """
    (folder / "README.md").write_text("---\ntitle: Mine\ntags: [fun]\nbase_path: /x\n---\nHello.\n")
    hub.spaces["our-org/game"] = Space(files={"old.py": b"1", "data/keep": b"2"})
    done = openenv(hub, "push", str(folder), "-r", "our-org/game", "--no-interface", "--delete", "*.py", "-e", "A=1")
    assert done.returncode == 0, done.stderr
    space = hub.spaces["our-org/game"]
    assert "old.py" not in space.files
    assert space.files["data/keep"] == b"2"
    assert "models.py" in space.files
    assert space.variables == {"A": "1"}
    front = yaml.safe_load(space.files["README.md"].decode().split("---\n")[1])
    assert (front["title"], front["tags"]) == ("Mine", ["fun", "openenv"])
    assert "base_path" not in front
    assert space.files["README.md"].decode().endswith("Hello.\n")
    assert b"ENABLE_WEB_INTERFACE" not in space.files["Dockerfile"]


def test_a_large_file_travels_as_one(hub: Hub, folder: Path) -> None:
    """More than 10 MB goes by LFS, which the hub insists on."""
    (folder / "weights.bin").write_bytes(os.urandom(11 << 20))
    done = openenv(hub, "push", str(folder))
    assert done.returncode == 0, done.stderr
    assert hub.spaces["me/game-env"].files["weights.bin"] == (folder / "weights.bin").read_bytes()


def test_a_pull_request(hub: Hub, folder: Path) -> None:
    """Opened, its address printed, and nothing else changed; there is none against a Space that does not exist."""
    hub.spaces["me/game-env"] = Space(files={"old.py": b"1"})
    done = openenv(hub, "push", str(folder), "--create-pr", "-e", "A=1")
    assert done.stdout.strip() == f"{hub.url}/spaces/me/game-env/discussions/1"
    space = hub.spaces["me/game-env"]
    assert space.files == {"old.py": b"1"}
    assert space.variables == {}
    assert "models.py" in space.pull_requests[0]
    done = openenv(hub, "push", str(folder), "--create-pr", "-r", "me/other")
    assert done.returncode == 4
    assert "me/other" not in hub.spaces


def test_a_dry_run(hub: Hub, folder: Path) -> None:
    """Says what would be done, and only looks.

    Mutation: create the Space before asking whether this is a dry run
    """
    done = openenv(hub, "push", str(folder), "--dry-run", "--json", "--exclude", "models.py")
    plan = json.loads(done.stdout)
    assert plan["created"] is True
    assert "server/app.py" in plan["files"]
    assert "models.py" not in plan["files"]
    assert {method for method, _ in hub.requests} == {"GET"}
    assert not hub.spaces
    assert "would create" in openenv(hub, "push", str(folder), "--dry-run").stderr


def test_nothing_is_changed_by_what_is_refused(hub: Hub, folder: Path) -> None:
    """No token, a bad one, a name of something else, of somebody else, no name, a file that is too large."""
    before = Space(sdk="gradio", files={"app.py": b"1"})
    hub.spaces["me/taken"] = before
    cases = [
        (["push", str(folder)], None, 3, "hf auth login"),
        (["push", str(folder)], "hf_other", 3, "hf auth login"),
        (["push", str(folder), "-r", "me/taken"], TOKEN, 2, "another kind"),
        (["push", str(folder), "-r", "strangers/env"], TOKEN, 3, "rights"),
        (["push", str(folder), "-r", "no-slash"], TOKEN, 2, "owner/name"),
        (["push", str(folder.parent)], TOKEN, 2, "openenv.yaml"),
        (["fork", "me/none"], TOKEN, 2, "no Space"),
        (["fork", "me/taken"], TOKEN, 2, "another kind"),
    ]
    for args, token, code, words in cases:
        done = openenv(hub, *args, token=token)
        assert done.returncode == code, (args, done.stderr)
        assert words in done.stderr, (args, done.stderr)
    with (folder / "huge.bin").open("wb") as file:
        file.truncate((1 << 30) + 1)
    done = openenv(hub, "push", str(folder))
    assert (done.returncode, "huge.bin" in done.stderr) == (2, True)
    assert hub.spaces == {"me/taken": before}
    assert {method for method, _ in hub.requests} <= {"GET", "POST"}


def test_a_new_space_that_cannot_be_filled_is_deleted_again(hub: Hub, folder: Path) -> None:
    """The first error is the one shown.

    Mutation: leave the empty Space
    """
    hub.fail["/commit/main"] = 422
    done = openenv(hub, "push", str(folder))
    assert done.returncode == 2
    assert "as the test wants it" in done.stderr
    assert not hub.spaces
    assert ("DELETE", "/api/repos/delete") in hub.requests


def test_a_hub_that_is_not_there(hub: Hub, folder: Path) -> None:
    """Told as such, not as a wrong name."""
    gone = Hub(url="http://127.0.0.1:9")
    done = openenv(gone, "push", str(folder), "-r", "me/x")
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr


def test_a_fork(hub: Hub) -> None:
    """A copy under an own name; a name that is taken is refused."""
    hub.spaces["them/game"] = Space(files={"Dockerfile": b"FROM x"})
    done = openenv(hub, "fork", "them/game", "--private", "-s", "API_KEY", "-e", "A=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("/spaces/me/game")
    copy = hub.spaces["me/game"]
    assert (copy.private, copy.secrets, copy.variables) == (True, {"API_KEY": SECRET}, {"A": "1"})
    done = openenv(hub, "fork", "them/game")
    assert (done.returncode, "taken" in done.stderr) == (2, True)
    done = openenv(hub, "fork", "them/game", "-r", "me/second")
    assert "me/second" in hub.spaces
