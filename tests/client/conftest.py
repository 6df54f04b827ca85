"""An environment server without our own server behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .harness import EnvServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[EnvServer]:
    with EnvServer() as running:
        yield running


@pytest.fixture(autouse=True)
def no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
