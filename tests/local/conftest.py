"""Fixtures of the local backend: sandboxes, and the certainty that nothing of them is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.local.sandboxes import BOTH, Maker, none_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(params=BOTH)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def make(isolation: str) -> AsyncIterator[Maker]:
    maker = Maker(isolation)
    yield maker
    await maker.close()


@pytest.fixture(autouse=True)
def leaves_nothing(state_dir: Path) -> Iterator[None]:
    """No process and no folder of a sandbox is left after any test."""
    yield
    assert none_left(str(state_dir)) == []
    root = state_dir / "local"
    assert not root.exists() or list(root.iterdir()) == []
