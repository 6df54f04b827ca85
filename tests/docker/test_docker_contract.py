"""The contract suite on a real daemon: an image built from a folder, and a plain ref."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox.provider import ImageConfig
from openenv_sandbox.testing.suite import ProviderCase, ProviderContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from openenv_sandbox.provider import Prepared
    from tests.docker.proxy import DaemonProxy

ECHO = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
CONFIG = ImageConfig(env={"MARK": "m a'rk"}, user="65534", workdir="/usr")
DYING = {"command": ("sh", "-c", "echo dying words; exit 17")}


@pytest.fixture(scope="module")
def configured(engine: docker.DockerClient, base_image: str) -> Iterator[tuple[str, ImageConfig]]:
    """An image with a configuration of its own."""
    lines = f'FROM {base_image}\nENV MARK="m a\'rk"\nUSER 65534\nWORKDIR /usr\nCMD ["sleep", "1000"]\n'
    name = "openenv-test/configured:1"
    engine.images.build(fileobj=io.BytesIO(lines.encode()), tag=name)
    yield name, CONFIG
    engine.images.remove(name, force=True)


class TestDockerContract(ProviderContract):
    """echo_env, built once from its folder, through a proxy that makes the daemon fail."""

    pytestmark: ClassVar[Any] = [pytest.mark.anyio, pytest.mark.docker]

    @pytest.fixture
    def provider_case(
        self, echo_image: Prepared, proxy: DaemonProxy, configured: tuple[str, ImageConfig]
    ) -> ProviderCase:
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
            brings=configured,
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
