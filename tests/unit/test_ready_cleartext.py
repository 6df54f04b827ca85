from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openenv_sandbox import probe
from openenv_sandbox.errors import ConfigError
from openenv_sandbox.provider import Endpoint

pytestmark = pytest.mark.anyio


async def test_the_probe_keeps_the_token_off_an_open_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness is asked for with the token, so it refuses what the client refuses, before it dials.

    Scenario: C11
    Mutation: probe.get resolves its target with allow_insecure=True
    """
    dialled: list[Any] = []

    async def dial(*where: Any, **_: Any) -> Any:
        dialled.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", dial)
    with pytest.raises(ConfigError, match="not encrypted"):
        await probe.get(Endpoint("http://93.184.216.34:8000"), "/health", token="sekret-canary", timeout=5)
    assert dialled == []
