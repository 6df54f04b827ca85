"""The contract suite on the fake provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.testing import FakeCloud, ProviderCase, ProviderContract

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestFake(ProviderContract):
    @pytest.fixture
    def provider_case(self) -> Iterator[ProviderCase]:
        with FakeCloud() as cloud:
            yield ProviderCase(
                cloud.provider(user=False),
                options={"address": cloud.address},
                child="openenv_sandbox.testing.fake:FakeProvider",
                faults=cloud.faults,
                action={"message": "hi"},
                dying={"command": ("/bin/sh", "-c", "echo dying words; exit 17")},
            )
