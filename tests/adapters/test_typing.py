"""What a type checker sees through the import names."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.adapters.served import PACKAGES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

SOURCE = """
import openenv
from openenv.core import EnvClient, GenericEnvClient, create_app
from openenv.core.env_server import Action, Environment, Observation, State, web_interface
from openenv.core.env_server.types import NoSuchName
from openenv.core.rubrics import Gate, Rubric
from openenv_core.env_server.types import Action as Old, NoSuchOldName

class Own(Environment[Action, Observation, State]):
    def reset(self) -> Observation:
        return Observation()
    def step(self, action: Old) -> Observation:
        return Observation(reward=1.0)
    @property
    def state(self) -> State:
        return State()

create_app(Own, Action, Observation)
create_app(Own, Own, Observation)
reveal_type(openenv.GenericEnvClient("http://x").base_url)
reveal_type(web_interface.load_environment_metadata(Own).name)
def score(rubric: Gate) -> Rubric:
    return rubric.threshold
"""


def test_types_are_visible_and_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SOURCE)
    root = PACKAGES.parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), str(snippet)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = [line.partition(": ")[2] for line in run.stdout.splitlines() if ": note: " in line or ": error: " in line]
    assert len(found) == 6, run.stdout + run.stderr
    assert 'has no attribute "NoSuchName"' in found[0]
    assert 'has no attribute "NoSuchOldName"' in found[1]
    assert "Argument 2" in found[2]
    assert 'Revealed type is "str"' in found[3]
    assert 'Revealed type is "str"' in found[4]
    assert "Incompatible return value type" in found[5]
