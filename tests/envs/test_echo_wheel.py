"""The echo environment as a wheel: everything that building and serving it needs is inside."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.wire.serving import ROOT, serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

USE = """
import sys
from echo_env import CallToolAction, EchoEnv
from openenv_sandbox.image import for_client
image = for_client(EchoEnv)
assert "unpacked" in image.path and image.dockerfile, image
with EchoEnv(base_url=sys.argv[1]).sync() as env:
    env.reset()
    print(env.step(CallToolAction(tool_name="echo_message", arguments={"message": "hi"})).observation.result)
"""


def test_the_wheel_is_complete(tmp_path: Path) -> None:
    """Client, server, manifest and Dockerfile are in it, and work from there.

    Mutation: leave openenv.yaml or Dockerfile out of the wheel
    """
    source = ROOT / "envs" / "echo_env"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(source)],
        check=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("openenv_echo_env-*.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    names = {path.name for path in (unpacked / "echo_env").iterdir()}
    assert {"openenv.yaml", "Dockerfile", ".dockerignore", "pyproject.toml", "py.typed", "server"} <= names
    path = os.pathsep.join(filter(None, (str(unpacked), os.environ.get("PYTHONPATH"))))
    with serve("echo_env.server.app:app", cwd=tmp_path, PYTHONPATH=path) as address:
        done = subprocess.run(
            [sys.executable, "-c", USE, f"http://{address}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.stdout.strip() == "hi", done.stderr
