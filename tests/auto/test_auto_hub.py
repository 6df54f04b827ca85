"""``openenv install`` and `AutoEnv` with a package of a stand-in hub, in an environment of their own."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.wheel import own_wheel
from tests.adapters.served import served as served_app
from tests.authoring.hub_standin import COMMIT, Hub, Space, served

if TYPE_CHECKING:
    from collections.abc import Iterator

# A build backend of its own: nothing has to be fetched to build the package.
BACKEND = """
import pathlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "openenv_far_env-0.4.dist-info/"
    files = {"far_env/" + n: pathlib.Path(n).read_text() for n in ("__init__.py", "client.py", "openenv.yaml")}
    needs = "".join(f"Requires-Dist: {n}\\n" for n in ("openenv>=0.2", "openenv-core>=0.2"))
    files[info + "METADATA"] = "Metadata-Version: 2.1\\nName: openenv-far-env\\nVersion: 0.4\\n" + needs
    files[info + "WHEEL"] = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[info + "RECORD"] = "".join(n + ",,\\n" for n in [*files, info + "RECORD"])
    pathlib.Path("built-here").write_text("a build writes into its folder")
    with zipfile.ZipFile(pathlib.Path(folder, "openenv_far_env-0.4-py3-none-any.whl"), "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return "openenv_far_env-0.4-py3-none-any.whl"
"""
FAR = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "openenv.yaml": "spec_version: 1\nname: far\napp: server.app:app\n",
    "__init__.py": "from .client import FarEnv\n",
    "client.py": "from openenv.core import GenericEnvClient\n\n\nclass FarEnv(GenericEnvClient):\n    pass\n",
    "Dockerfile": "FROM python:3.11-slim\n",
}


def wheel_of_the_older_distribution(folder: Path) -> None:
    """What overwrites the files of the same import names."""
    info = "openenv_core-0.2.3.dist-info/"
    files = {
        "openenv/__init__.py": "GenericEnvClient = int\n",
        "openenv/core/__init__.py": "raise ImportError('this is the older one')\n",
        info + "METADATA": "Metadata-Version: 2.1\nName: openenv-core\nVersion: 0.2.3\n",
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = io.StringIO()
    rows = csv.writer(record)
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(text)])
    rows.writerow([info + "RECORD", "", ""])
    with zipfile.ZipFile(folder / "openenv_core-0.2.3-py3-none-any.whl", "w") as archive:
        for name, text in {**files, info + "RECORD": record.getvalue()}.items():
            archive.writestr(name, text)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with our wheel; what it needs beside that is the one of these tests."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    found = str(folder / "bin" / "python")
    wheel = own_wheel(tmp_path_factory.mktemp("wheel"))
    install = [found, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, timeout=120)
    site = Path(next(folder.glob("lib/python3*/site-packages")))
    (site / "needs.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return found


@pytest.fixture
def hub() -> Iterator[Hub]:
    with served() as hub:
        hub.spaces["org/far"] = Space(files={name: text.encode() for name, text in FAR.items()})
        yield hub


class Run:
    """Runs in that environment, without an index."""

    def __init__(self, python: str, hub: Hub, folder: Path) -> None:
        self.python, self.folder = python, folder
        wheel_of_the_older_distribution(folder)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OPENENV_", "PIP_", "PYTHON"))}
        self.env = {
            **clean,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "OPENENV_STATE_DIR": str(folder / "state"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder),
            "PIP_NO_CACHE_DIR": "1",
        }

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [self.python, *args]
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, timeout=240)


OURS = """
import importlib.metadata as m, json, openenv, openenv.core, openenv_sandbox
names = sorted({d.metadata["Name"] for d in m.distributions() if d.metadata["Name"].startswith("openenv")})
print(json.dumps([names, openenv.GenericEnvClient.__module__, openenv.__version__, openenv_sandbox.__file__]))
"""
USE = """
import sys
from openenv import AutoEnv, AutoAction
from openenv.core import GenericEnvClient
env = AutoEnv.from_env("org/far", base_url=sys.argv[1], trust_remote_code=True)
assert type(env).__name__ == "FarEnv" and isinstance(env, GenericEnvClient), env
assert AutoEnv.get_env_class("far") is type(env)
with env.sync() as client:
    assert client.reset().done is False
started = AutoEnv.from_hub("org/far")
assert started._provider.image.startswith("hf://org/far@0123456789"), started._provider.image
assert AutoEnv.from_hub("org/far", container_provider=print)._provider.image == "registry.hf.space/org-far:latest"
"""


def test_a_package_of_the_hub(python: str, hub: Hub, tmp_path: Path) -> None:
    """Asked for trust, pinned, and this openenv is the one that is left; the same commit is installed once.

    Mutation: leave openenv-core; build in the folder that was fetched; install it again each time; install side by side
    """
    run = Run(python, hub, tmp_path)
    refused = run("-m", "openenv_sandbox.cli", "install", "hf://org/far")
    assert (refused.returncode, "--trust" in refused.stderr) == (4, True)
    assert not hub.requests
    before: Any = json.loads(run("-c", OURS).stdout)

    with ThreadPoolExecutor() as pool:  # two at once: one of them installs
        command = ("-m", "openenv_sandbox.cli", "install", "hf://org/far", "--trust", "--json")
        both = list(pool.map(lambda _: run(*command), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    source = f"hf://org/far@{COMMIT}"
    told = {"package": "openenv-far-env", "version": "0.4", "source": source}
    said = sorted((json.loads(done.stdout) for done in both), key=lambda one: bool(one["fresh"]))
    assert said == [{**told, "fresh": False}, {**told, "fresh": True}]
    assert "removing openenv-core" in both[0].stderr + both[1].stderr
    after: Any = json.loads(run("-c", OURS).stdout)
    assert set(after[0]) - set(before[0]) == {"openenv-far-env"}
    assert after[1:] == before[1:]
    assert after[1] == "openenv_sandbox.client.generic"
    assert not list((tmp_path / "state" / "sources").rglob("built-here"))

    hub.requests.clear()
    again = run("-m", "openenv_sandbox.cli", "install", f"{source}", "--trust")
    assert again.returncode == 0, again.stderr
    assert "it was there already" in again.stderr
    assert not hub.requests

    with served_app("notes_env.server.app:app", Path(__file__).parents[1] / "adapters" / "packages") as url:
        used = run("-c", USE, url, OPENENV_TRUST_REMOTE_CODE="1")
        assert used.returncode == 0, used.stderr


def test_what_cannot_be_installed(python: str, hub: Hub, tmp_path: Path) -> None:
    """A Space that is no package, and one that wants another openenv: refused, and ours is what it was."""
    run = Run(python, hub, tmp_path)
    hub.spaces["org/bare"] = Space(files={"openenv.yaml": b"name: bare\n", "Dockerfile": b"FROM x\n"})
    bare = run("-m", "openenv_sandbox.cli", "install", "hf://org/bare", "--trust")
    assert (bare.returncode, "no pyproject.toml" in bare.stderr) == (2, True)
    other = BACKEND.replace("openenv>=0.2", "openenv==0.10.0").replace("far_env", "odd_env").replace("far-env", "odd")
    hub.spaces["org/odd"] = Space(files={k: t.encode() for k, t in {**FAR, "backend.py": other}.items()})
    odd = run("-m", "openenv_sandbox.cli", "install", "hf://org/odd", "--trust")
    assert odd.returncode == 1, odd.stderr
    assert json.loads(run("-c", OURS).stdout)[1] == "openenv_sandbox.client.generic"
