"""Only what was declared is reachable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.spec import PortSpec

if TYPE_CHECKING:
    from tests.docker.docks import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


async def test_only_declared_ports_are_published(dock: Docker) -> None:
    """The image exposes 8000; nothing but what the spec declares gets a port of the host, and that on loopback.

    Scenario: M05
    Mutation: publish every port that the image exposes, or bind to all addresses
    """
    sandbox = await dock.create(port=9000, ports=(PortSpec(number=9001),))
    (container,) = dock.containers()
    published = {name: ports for name, ports in container.attrs["NetworkSettings"]["Ports"].items() if ports}
    assert set(published) == {"9000/tcp", "9001/tcp"}
    assert {port["HostIp"] for ports in published.values() for port in ports} == {"127.0.0.1"}
    with pytest.raises(CapabilityError) as refused:
        await sandbox.endpoint(8000)
    assert "9000" in str(refused.value)
    assert DockerProvider.capabilities.ports == "at-create"
