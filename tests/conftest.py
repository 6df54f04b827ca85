"""Fixtures every test may use: the loop, what counts as blocking, and which engines are there."""

from __future__ import annotations

import _queue
import fcntl
import os
import shutil
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from openenv_sandbox import breaker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A shared machine is slow now and then; what hypothesis looks for is wrong answers, not late ones.
settings.register_profile("openenv", deadline=None)
settings.load_profile("openenv")

ENGINES_REQUIRED = os.environ.get("OPENENV_REQUIRE_ENGINES") == "1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a state folder of its own and none of the user's configuration."""
    for name in [n for n in os.environ if n.startswith("OPENENV_") and n != "OPENENV_BASE_IMAGE"]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("OPENENV_STATE_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    return folder


@pytest.fixture(autouse=True)
def fresh_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dies in one test suspends nothing in the next ones of its process."""
    monkeypatch.setattr(breaker, "_breakers", {})


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """A blocking call on the event loop is an error inside this fixture."""
    from blockbuster import BlockBuster, BlockBusterFunction

    guard = BlockBuster(scanned_modules=None)
    guard.functions["os.fsync"] = BlockBusterFunction(os, "fsync")
    guard.functions["fcntl.flock"] = BlockBusterFunction(fcntl, "flock")
    guard.functions["queue.SimpleQueue.get"] = BlockBusterFunction(_queue.SimpleQueue, "get")
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()


def docker_ready() -> bool:
    """Whether a daemon answers."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def browser_missing() -> str | None:
    """Why no page can be opened here; None when one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return None if shutil.which("chromium") else "chromium is not installed"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without an engine its tests skip with one line, or fail where engines are required."""
    if ENGINES_REQUIRED:
        return
    wanted = {name for item in items for name in ("docker", "bwrap", "browser") if item.get_closest_marker(name)}
    missing = {}
    if "docker" in wanted and not docker_ready():
        missing["docker"] = "no docker daemon answers"
    if "bwrap" in wanted and shutil.which("bwrap") is None:
        missing["bwrap"] = "bubblewrap is not installed"
    if "browser" in wanted and (reason := browser_missing()):
        missing["browser"] = reason
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
