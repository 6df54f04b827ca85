"""The published package in its environments: found by scripts/interop_env.py, never installed by a test."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Read before the fixture that clears OPENENV_* of every test.
NAMED = os.environ.get("OPENENV_INTEROP_DIR")


def _find(version: str) -> Path | None:
    spec = importlib.util.spec_from_file_location("interop_env", ROOT / "scripts" / "interop_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        if NAMED is not None:
            patch.setenv("OPENENV_INTEROP_DIR", NAMED)
        found: Path | None = module.find(version)
    return found


def found(client: str) -> str:
    """The interpreter of an MCP client's environment; both are required."""
    python = _find(client)
    if python is None:
        pytest.fail(f"the MCP client is not there: python scripts/interop_env.py {client}")
    return str(python)


@pytest.fixture(scope="session", params=["0.10.0", "0.6.0"])
def reference(request: pytest.FixtureRequest) -> str:
    """An interpreter that has the published package.

    The newest release is required; an older one takes part where its environment was made.
    """
    python = _find(request.param)
    if python is None and request.param == "0.10.0":
        pytest.fail("the published package is not there: make interop-env")
    if python is None:
        pytest.skip(f"no environment with openenv {request.param}: python scripts/interop_env.py {request.param}")
    return str(python)
