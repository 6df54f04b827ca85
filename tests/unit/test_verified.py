"""What is claimed of a backend is what ran; who writes that down is the run itself."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from openenv_sandbox.provider import SandboxProvider

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "verified.json"
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
BACKENDS = POINTS["openenv.sandbox_providers"]


def load(target: str) -> type[SandboxProvider]:
    module, _, name = target.partition(":")
    cls: type[SandboxProvider] = getattr(importlib.import_module(module), name)
    return cls


@pytest.fixture
def test_all() -> Any:
    spec = importlib.util.spec_from_file_location("test_all", ROOT / "scripts" / "test_all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_a_backend_claims_what_ran(name: str) -> None:
    claimed = load(BACKENDS[name]).verified
    ran = json.loads(RECORD.read_text(encoding="utf-8"))["backends"].get(name)
    if ran is None:
        assert claimed.how == "none", f"{name} claims {claimed.how}: run scripts/test_all.py {name}"
        return
    assert claimed.how == ran["how"]
    assert claimed.sdk.split(".")[:2] == ran["sdk"].split(".")[:2]


def test_what_ran_is_written_whole() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for name, ran in record["backends"].items():
        assert set(ran) - {"counts"} == {"how", "sdk", "commit", "date"}, name
        assert re.fullmatch(r"[0-9a-f]{12}( with changes)?", ran["commit"]), name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", ran["date"]), name
        assert "failed" not in ran.get("counts", ""), name


@pytest.mark.parametrize(
    ("passed", "counts", "kept"),
    [
        (True, "150 passed, 3 skipped", True),
        (False, "149 passed, 1 failed", False),
        (True, "4 passed, 1 skipped", False),
        (True, "1 skipped", False),
        (True, "", False),
    ],
)
def test_only_a_whole_pass_verifies(test_all: Any, passed: bool, counts: str, kept: bool) -> None:
    """A failure, or a suite that was skipped for want of its SDK, takes the claim away.

    Mutation: a part counts as passed by its exit code alone
    """
    record = {"backends": {"docker": {"how": "engine"}}}
    stamp = {"commit": "0123456789ab", "date": "2026-01-01"}
    test_all.keep(record, "docker", {"passed": passed, "counts": counts}, stamp, "engine")
    assert ("docker" in record["backends"]) == kept
    if kept:
        assert record["backends"]["docker"] == {
            "how": "engine",
            "sdk": test_all.used("docker"),
            "counts": counts,
            **stamp,
        }


def test_every_backend_has_its_part(test_all: Any) -> None:
    assert set(BACKENDS) <= set(test_all.BACKENDS)
    assert set(test_all.BACKENDS) <= set(test_all.PARTS)
    for name in test_all.EMULATED:
        assert f"tests/emulators/test_{name}.py" in test_all.PARTS[name]
