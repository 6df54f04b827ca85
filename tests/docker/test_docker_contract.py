"""The contract suite on a real daemon: an image built from a folder, and a plain ref."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox.testing.suite import ProviderCase, ProviderContract

if TYPE_CHECKING:
    from openenv_sandbox.provider import Prepared
    from tests.docker.proxy import DaemonProxy

ECHO = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
DYING = {"command": ("sh", "-c", "echo dying words; exit 17")}


class TestDockerContract(ProviderContract):
    """echo_env, built once from its folder, through a proxy that makes the daemon fail."""

    pytestmark: ClassVar[Any] = [pytest.mark.anyio, pytest.mark.docker]

    @pytest.fixture
    def provider_case(self, echo_image: Prepared, proxy: DaemonProxy) -> ProviderCase:
        options = {"host": proxy.url}
        return ProviderCase(
            DockerProvider,
            image=echo_image,
            options=options,
            action=ECHO,
            dying=DYING,
            gone_s=10.0,
            child="openenv_providers.docker:DockerProvider",
            child_options=options,
            faults=proxy.faults,
            missing="openenv/certainly-not-there:0",
        )


@pytest.mark.full
class TestDockerRefContract(ProviderContract):
    """The same image by its name, as if it came from a registry."""

    pytestmark: ClassVar[Any] = [pytest.mark.anyio, pytest.mark.docker]

    @pytest.fixture
    def provider_case(self, echo_image: Prepared) -> ProviderCase:
        return ProviderCase(
            DockerProvider,
            image=echo_image.ref,
            action=ECHO,
            dying=DYING,
            gone_s=10.0,
            missing="openenv/certainly-not-there:0",
        )
