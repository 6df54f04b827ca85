"""What a type checker sees: results after await and at once, the blocking face typed by the same parameters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

CODE = """
from openenv_sandbox.client import EnvClient, SyncEnvClient
from openenv_sandbox.models import Action, Observation, State

class A(Action):
    text: str

class O(Observation):
    text: str

class C(EnvClient[A, O, State]):
    pass

async def awaited(client: C) -> None:
    async with client as same:
        reveal_type(same)
    reveal_type((await client.reset()).observation)
    reveal_type((await client.step(A(text="x"))).reward)
    reveal_type(await client.state())
    reveal_type(await client.connect())
    reveal_type(await client.new_session())

def blocking(client: C) -> None:
    reveal_type(client.sync().reset().observation)
    reveal_type(client.sync().state())
    reveal_type(client.reset().observation)
    with client.sync() as same:
        reveal_type(same)
    client.sync().step("wrong")
"""

REVEALED = [
    "m.C",
    "m.O",
    "float | None",
    "openenv_sandbox.models.State",
    "m.C",
    "m.C",
    "m.O",
    "openenv_sandbox.models.State",
    "m.O",
    "openenv_sandbox.client.sync.SyncEnvClient[m.A, m.O, openenv_sandbox.models.State]",
]


@pytest.mark.full
def test_both_faces_are_typed(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(CODE)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", "m.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={"MYPYPATH": str(root), "PATH": "/usr/bin:/bin", "MYPY_CACHE_DIR": str(tmp_path / "cache")},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("m.py")]
    revealed = [line.split('Revealed type is "')[1].rstrip('"') for line in lines if "Revealed" in line]
    assert [one.replace("builtins.", "") for one in revealed] == REVEALED
    errors = [line for line in lines if "error:" in line]
    assert len(errors) == 1, done.stdout
    assert '"str"; expected "A"' in errors[0]
