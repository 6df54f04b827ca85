"""What a type costs, counted in modules, beside what it costs in the published package; pydantic is in both counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.interop

COUNT = "; import sys; print(len(sys.modules))"


def modules(python: str, statement: str) -> int:
    done = subprocess.run(
        [python, "-W", "ignore", "-c", statement + COUNT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(
    "statement", ["from openenv.core.env_server.types import Action", "from openenv.core.rubrics import Rubric"]
)
def test_a_type_costs_a_fifth(reference: str, statement: str) -> None:
    """Mutation: import the server in openenv.core.env_server.types"""
    assert modules(sys.executable, statement) <= 0.2 * modules(reference, statement)
