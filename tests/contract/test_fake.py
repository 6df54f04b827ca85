"""The contract suite on the fake provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.capabilities import ExecCapabilities
from openenv_sandbox.testing import FakeCloud, ProviderCase, ProviderContract
from openenv_sandbox.testing.suite_exec import ExecContract
from openenv_sandbox.testing.suite_files import FilesContract
from openenv_sandbox.testing.suite_process import ProcessContract
from openenv_sandbox.testing.suite_raw import RawContract

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


class TestFakeText(RawContract, ExecContract, ProcessContract, FilesContract):
    """Commands whose output comes back as one text: what users get is the same."""

    @pytest.fixture
    def provider_case(self) -> Iterator[ProviderCase]:
        caps = ExecCapabilities(binary=False, split=False, stream=False, env=False, cwd=False, user=False)
        with FakeCloud() as cloud:
            yield ProviderCase(cloud.provider(exec=caps, user=False), options={"address": cloud.address})
