"""The contract suite on this machine, with and without bubblewrap."""

from __future__ import annotations

from pathlib import Path

import pytest
from openenv_providers.local import LocalProvider

from openenv_sandbox.testing import ProviderCase, ProviderContract

ECHO = Path(__file__).parents[2] / "envs" / "echo_env"
HELLO = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
DYING = {"command": ("/bin/sh", "-c", "echo dying words; exit 17")}


def case(isolation: str) -> ProviderCase:
    return ProviderCase(
        LocalProvider,
        image=str(ECHO),
        options={"isolation": isolation},
        action=HELLO,
        dying=DYING,
        missing="./no_such_folder",
        gone_s=5,
        child="openenv_providers.local:LocalProvider",
        skip={f"test_kill_9[{point}]": "no request to hold" for point in ("request", "reply")},
    )


@pytest.mark.bwrap
class TestIsolated(ProviderContract):
    @pytest.fixture
    def provider_case(self) -> ProviderCase:
        return case("bwrap")


class TestNotIsolated(ProviderContract):
    @pytest.fixture
    def provider_case(self) -> ProviderCase:
        return case("none")
