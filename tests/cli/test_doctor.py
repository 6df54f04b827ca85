"""``openenv doctor``: what it finds, with the remedy, and what it does not touch."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import _paths
from openenv_sandbox.cli.main import run
from openenv_sandbox.doctor import Finding, examine, installed
from openenv_sandbox.doctor.live import try_out
from openenv_sandbox.testing import FakeCloud

if TYPE_CHECKING:
    from pathlib import Path


def of(subject: str, found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.subject == subject]


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_machine_in_order() -> None:
    """No errors here, no SDK imported, no state folder made, and something said about each subject."""
    code = (
        "import sys, json\n"
        "from openenv_sandbox.doctor import examine\n"
        "found = examine()\n"
        "sdks = [m for m in ('docker', 'modal', 'e2b', 'daytona', 'azure') if m in sys.modules]\n"
        "print(json.dumps([[(f.subject, f.level) for f in found], sdks]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, sdks = json.loads(done.stdout)
    assert sdks == []
    assert not [one for one in found if one[1] == "error"]
    subjects = {one[0] for one in found}
    assert {"python", "platform", "openenv", "extras", "docker", "bwrap", "loopback", "state", "leftovers"} <= subjects


def test_the_older_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside ours it overwrites our files: an error that says how to mend it.

    Mutation: look for openenv-core by its import name, which is ours too
    """
    distribution(tmp_path, "openenv-core", "0.2.3")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = of("openenv-core", examine())
    assert (found.level, "0.2.3" in found.text, "uninstall openenv-core" in found.remedy) == ("error", True, True)
    assert run(["doctor", "--json"]) == 1
    assert not installed.is_ours(tmp_path)


def test_packages_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK below an extra's bound, and two packages that exclude each other.

    Mutation: compare versions as texts
    """
    wanted = ['sdk-a>=0.9.2,<1; extra == "a"', "sdk-b==1.10; extra == 'b'", 'sdk-c>=1; extra == "dev"', "core>=9"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed.problems() == []
    for name, version in (("sdk-a", "0.10.0"), ("sdk-b", "1.10.0"), ("sdk-c", "0.1"), ("core", "1")):
        distribution(tmp_path, name, version)
    assert installed.problems() == []
    assert installed.complete() == {"a", "b"}
    monkeypatch.setattr(metadata, "requires", lambda name: ['sdk-a>=0.10.1; extra == "a"'])
    ((text, remedy),) = installed.problems()
    assert "sdk-a 0.10.0 is installed, the extra a wants sdk-a>=0.10.1" in text
    assert remedy == "pip install 'openenv[a]'"
    monkeypatch.setattr(metadata, "requires", lambda name: [])
    distribution(tmp_path, "prime-sandboxes", "0.5")
    distribution(tmp_path, "e2b", "2.63")
    ((text, _),) = installed.problems()
    assert "prime-sandboxes and e2b" in text


def test_engines_state_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead daemon, a state folder on a network, a malformed file, an unknown variable."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(_paths, "file_system", lambda path: "nfs4")
    monkeypatch.setenv("OPENENV_PROVDER", "docker")
    found = examine()
    (docker,) = of("docker", found)
    assert (docker.level, "none.sock" in docker.text, docker.remedy) == (
        "note",
        True,
        "install docker, or set DOCKER_HOST",
    )
    (state,) = of("state", found)
    assert (state.level, state.remedy) == ("error", "set OPENENV_STATE_DIR")
    assert "OPENENV_PROVIDER" in of("configuration", found)[1].text
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openenv.toml").write_text("provider = ")
    (configuration,) = of("configuration", examine())
    assert configuration.level == "error"


def test_leftovers(state_dir: Path) -> None:
    """What a process left that was killed, and how to remove it.

    Mutation: count what a living process uses
    """
    with FakeCloud() as cloud:
        script = (
            "import os, sys\n"
            "from openenv_sandbox import sandbox\n"
            "from openenv_sandbox.testing.fake import FakeProvider\n"
            "box = sandbox('fake-env:1', provider=FakeProvider, options={'address': sys.argv[1]}).sync()\n"
            "os.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run([sys.executable, "-c", script, cloud.address], timeout=60)
        assert done.returncode == -9
        (found,) = of("leftovers", examine())
        assert (found.level, found.text.startswith("1 ")) == ("warning", True)
        assert "openenv gc" in found.remedy
        assert len(cloud.boxes) == 1


@pytest.mark.anyio
async def test_live() -> None:
    """Every stage has its time, and nothing is left."""
    with FakeCloud() as cloud:
        stages = await try_out("fake-env:1", provider=cloud.provider(), options={"address": cloud.address})
        assert [name for name, _, _ in stages] == ["created", "ready", "connected", "exec", "reset", "state", "stopped"]
        assert all(seconds >= 0 for _, seconds, _ in stages)
        assert stages[3][2] == "from-inside"
        assert not cloud.boxes
