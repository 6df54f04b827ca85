"""Which way leads to the port, and which ways lead out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox import _dockerhost
from openenv_sandbox.errors import CapabilityError, EndpointError, ProviderUnavailable
from openenv_sandbox.image import parse
from openenv_sandbox.running import RunningSandbox
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.case import DirectOwner
from tests.docker.proxy import DaemonProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from openenv_sandbox.provider import Endpoint, Sandbox
    from tests.docker.docks import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REACH = """
import socket, sys, errno
for host, port in [a.rsplit(":", 1) for a in sys.argv[1:]]:
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(host, "reached")
    except socket.gaierror:
        print(host, "no name")
    except OSError as error:
        print(host, errno.errorcode.get(error.errno, "timeout"))
"""


@pytest.fixture
def target() -> str:
    path = _dockerhost.resolve().socket_path
    if path is None:
        pytest.skip("needs a daemon on a unix socket")
    return path


async def get(endpoint: Endpoint, path: str = "/health") -> int:
    """The status of a request, retried until the server listens."""
    import httpx

    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for _ in range(600):
            try:
                return (await client.get(f"{endpoint.url}{path}")).status_code
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
    raise AssertionError("nobody answered")


def face(dock: Docker, sandbox: Sandbox) -> RunningSandbox:
    spec = SandboxSpec(image=dock.prepared.ref)
    return RunningSandbox(sandbox, provider=dock.provider, spec=spec, owner=DirectOwner(dock.provider, sandbox))


@pytest.fixture
async def offline(dock: Docker) -> AsyncIterator[tuple[Sandbox, Endpoint]]:
    sandbox = await dock.create(network="none", command=None)
    endpoint = await sandbox.endpoint(8000)
    yield sandbox, endpoint
    await endpoint.aclose()


async def test_no_network_is_none(dock: Docker, offline: tuple[Sandbox, Endpoint]) -> None:
    """Names, the gateway, the metadata address, a sibling and the outside are unreachable, and the port answers.

    Scenario: M03
    Mutation: network_mode "none" is left out of the host config
    """
    sibling = await dock.create(command=("python3", "-m", "http.server", "8000"))
    inspected = await dock.provider.inspect(sibling.ref)
    settings = next(iter(inspected["NetworkSettings"]["Networks"].values()))
    sandbox, endpoint = offline
    targets = [
        f"{settings['Gateway']}:22",
        f"{settings['IPAddress']}:8000",
        "169.254.169.254:80",
        "8.8.8.8:53",
        "example.com:80",
    ]
    result = await face(dock, sandbox).exec(["python3", "-c", REACH, *targets])
    said = [line.partition(" ")[2] for line in result.text().splitlines()]
    assert set(said) <= {"ENETUNREACH", "no name"}, result.text()
    assert len(said) == 5
    assert await get(endpoint) == 200
    connected = await dock.create(command=None)
    result = await face(dock, connected).exec(["python3", "-c", REACH, targets[1]])
    assert "reached" in result.text(), "the check itself must be able to see a reachable sibling"


async def test_a_large_message_passes_the_relay(offline: tuple[Sandbox, Endpoint]) -> None:
    """A WebSocket message of 16 MiB goes in and its answer comes back.

    Scenario: M03
    Mutation: the relay's frames of more than 64 KiB are not put together again
    """
    from openenv_sandbox.client import GenericEnvClient

    _, endpoint = offline
    assert await get(endpoint) == 200
    client: GenericEnvClient = GenericEnvClient(base_url=endpoint.url)
    async with client:
        await client.reset()
        message = "x" * (16 << 20)
        action = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": message}}
        result = await client.step(action)
        assert message in json.dumps(result.observation)


async def test_a_kill_closes_the_relay(dock: Docker) -> None:
    """When the container dies, a client on the relay hears of it at once, ten times over.

    Scenario: M03
    Mutation: the relay is left open when its command ends
    """
    for _ in range(10):
        sandbox = await dock.create(network="none", command=("python3", "-m", "http.server", "8000"))
        endpoint = await sandbox.endpoint(8000)
        try:
            assert await get(endpoint, "/") == 200
            host, _, port = endpoint.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await sandbox.delete()
            await asyncio.wait_for(reader.read(), 20)
            writer.close()
        finally:
            await endpoint.aclose()


async def test_what_docker_cannot_keep_is_refused() -> None:
    """Docker has no allowlist and no bound on disks, and says so before anything is created.

    Scenario: M03
    Mutation: "hosts" is added to the declared network policies
    """
    from openenv_sandbox.capcheck import check

    caps = DockerProvider.capabilities
    for fields in ({"network": {"mode": "allowlist", "hosts": ["example.org"]}}, {"resources": {"disk_mb": 100}}):
        spec = SandboxSpec(image="me/env:1", **fields)
        with pytest.raises(CapabilityError, match=next(iter(fields))):
            check(spec, parse("me/env:1"), caps, provider="docker")


async def test_the_address_is_a_literal(dock: Docker) -> None:
    """The endpoint names 127.0.0.1, never localhost, and the port is the daemon's choice.

    Scenario: E06
    Mutation: the URL is made from "localhost"
    """
    sandbox = await dock.create(command=None)
    endpoint = await sandbox.endpoint(8000)
    assert endpoint.url.startswith("http://127.0.0.1:")
    assert await get(endpoint) == 200
    bindings = (await dock.provider.inspect(sandbox.ref))["NetworkSettings"]["Ports"]["8000/tcp"]
    assert {item["HostIp"] for item in bindings} == {"127.0.0.1"}
    with pytest.raises(CapabilityError, match="9000 was not declared"):
        await sandbox.endpoint(9000)


async def test_a_port_that_is_published_late(dock: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three looks without an address are waited for; an address that never comes is an error that names the port.

    Scenario: E09
    Mutation: the first look decides
    """
    sandbox = await dock.create()
    real, looks = dock.provider.inspect, 0

    async def late(ref: Any) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        found = await real(ref)
        return {**found, "NetworkSettings": {"Ports": {}}} if looks <= hidden else found

    hidden = 3
    monkeypatch.setattr(dock.provider, "inspect", late)
    assert (await sandbox.endpoint(8000)).url
    assert looks == 4
    hidden = 1000
    with pytest.raises(EndpointError, match="port 8000"):
        await sandbox.endpoint(8000)


async def test_tcp_daemon(dock: Docker, target: str) -> None:
    """A daemon over TCP on the loopback: the port is reached, commands run, input ends.

    Scenario: E07
    Mutation: the host part of DOCKER_HOST is taken for the sandbox's address whatever it is
    """
    with DaemonProxy(target) as proxy:
        provider = await asyncio.to_thread(DockerProvider, {"host": proxy.url})
        assert provider.check({"host": proxy.url}).ready
        dock.provider, direct = provider, dock.provider
        sandbox = await dock.create(command=None)
        endpoint = await sandbox.endpoint(8000)
        assert endpoint.url.startswith("http://127.0.0.1:")
        assert await get(endpoint) == 200
        out: list[bytes] = []
        caps: dict[str, Any] = {"env": {}, "cwd": None, "user": None}
        await sandbox.exec_raw(["cat"], stdin=b"abc", on_output=lambda _, data: out.append(data), **caps)
        assert b"".join(out) == b"abc"
        assert any("/exec" in line for line in proxy.requests)
        await sandbox.delete()
        await provider.aclose()
        dock.provider = direct


CLIENT = """
import asyncio, sys
import httpx
from openenv_providers.docker import DockerProvider
from openenv_sandbox.provider import SandboxRef

async def main():
    provider = DockerProvider()
    sandbox = await provider.attach(SandboxRef("docker", provider.scope(), sys.argv[1]))
    endpoint = await sandbox.endpoint(8000)
    async with httpx.AsyncClient(trust_env=False) as client:
        print((await client.get(endpoint.url + "/health")).status_code)
    await endpoint.aclose()
    await provider.aclose()

asyncio.run(main())
"""


async def test_client_in_a_container_of_a_user_network(dock: Docker, target: str, base_image: str) -> None:
    """With the socket mounted, a client in a container on another network reaches the sandbox.

    Scenario: E07
    Mutation: the published port is used although 127.0.0.1 is the client container's own
    """
    sandbox = await dock.create(command=None)
    assert await get(await sandbox.endpoint(8000)) == 200
    network = await asyncio.to_thread(dock.engine.networks.create, f"openenv-{dock.run}", labels={"oe-run": dock.run})
    mounts = dict.fromkeys([sys.prefix, sys.base_prefix, REPO])
    code = ["-c", CLIENT, sandbox.ref.id]
    try:
        output = await asyncio.to_thread(
            dock.engine.containers.run,
            base_image,
            [sys.executable, *code],
            network=network.name,
            remove=True,
            environment={"PYTHONDONTWRITEBYTECODE": "1", "OPENENV_STATE_DIR": "/tmp/state", "PYTHONPATH": ""},
            volumes=[f"{path}:{path}:ro" for path in mounts] + [f"{target}:/var/run/docker.sock"],
        )
    finally:
        await asyncio.to_thread(network.remove)
    assert output.decode().strip() == "200"


async def test_unreachable_daemon(tmp_path: Path) -> None:
    """A socket that nobody serves is a bounded error that names it and what to do.

    Scenario: A14
    Mutation: the default socket is tried when the one that was named does not answer
    """
    provider = await asyncio.to_thread(DockerProvider, {"host": f"unix://{tmp_path}/no.sock"})
    with pytest.raises(ProviderUnavailable) as caught:
        await asyncio.wait_for(provider.find("oe-x"), 30)
    for word in (f"{tmp_path}/no.sock does not exist", "the option host", "DOCKER_HOST"):
        assert word in str(caught.value)
    found = DockerProvider.check({"host": f"unix://{tmp_path}/no.sock"})
    assert not found.ready
    assert f"{tmp_path}/no.sock does not exist" in found.reason
    assert "DOCKER_HOST" in found.hint


def test_check_imports_no_sdk() -> None:
    code = (
        "import sys; from openenv_providers.docker import DockerProvider as P; P.check(); P.check({'no': 1});"
        "sys.exit('docker' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert "no option" in DockerProvider.check({"no": 1}).reason
    assert "npipe" in DockerProvider.check({"host": "npipe:////./pipe/docker_engine"}).reason
    assert DockerProvider.check({"host": "ssh://me@far"}).ready == (shutil.which("ssh") is not None)
