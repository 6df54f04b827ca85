"""Fixtures of the emulated vendors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine
    from tests.emulators.proof_guard import SdkFiles

pytest.register_assert_rewrite(
    *(
        f"tests.emulators.{name}"
        for name in ("proof", "proof_faults", "proof_guard", "proof_launch", "proof_many", "proof_sdk")
    )
)

ENGINES_REQUIRED = os.environ.get("OPENENV_REQUIRE_ENGINES") == "1"
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:  # ``tests.emulators.…`` also where the project is installed from a wheel
    sys.path.append(ROOT)


@pytest.fixture(scope="module")
def engine_module() -> Iterator[Engine]:
    """One engine for the tests of a module."""
    from tests.emulators.engine import Engine, needs_root

    reason = needs_root()
    if reason is not None:
        if ENGINES_REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    with Engine() as engine:
        yield engine


@pytest.fixture
def engine(engine_module: Engine) -> Iterator[Engine]:
    """The module's engine, empty and without faults before and after each test."""
    engine_module.clear()
    yield engine_module
    engine_module.clear()


@pytest.fixture(autouse=True)
def nothing_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """The loop of every emulated test is guarded; those of the shared proof bring a guard with their exemptions."""
    if "engine" not in request.fixturenames or "guarded" in request.fixturenames:
        yield
        return
    from tests.emulators.proof_guard import BlockingGuard

    with BlockingGuard(getattr(request.module, "MAY_BLOCK", ())) as guard:
        yield
    assert guard.found == []


@pytest.fixture(scope="session")
def sdk_files() -> Iterator[SdkFiles]:
    """The files of the SDKs in use are what their RECORD says, before the first test and after the last."""
    from tests.emulators.proof_guard import SdkFiles

    files = SdkFiles()
    yield files
    assert files.altered() == []
