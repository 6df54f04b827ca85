"""Starting servers as older code does it: provider objects, `from_docker_image` and `from_env`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from openenv.core import GenericEnvClient
from openenv.core.containers.runtime import ContainerProvider, RuntimeProvider, UVProvider
from openenv_adapters.containers.providers import LaunchedContainer

from openenv_sandbox.client import addresses
from openenv_sandbox.errors import CapabilityError, ConfigError, ReadyTimeout, UsageError
from openenv_sandbox.testing import FakeCloud
from tests.wire.serving import ROOT, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def on(cloud: FakeCloud) -> LaunchedContainer:
    return LaunchedContainer(cloud.provider(), {"address": cloud.address})


def test_the_address_alone_is_enough(cloud: FakeCloud) -> None:
    """A client made with the text of the address is let in by a server that wants a token; others are not.

    Mutation: publish the address without its token
    """
    with on(cloud) as provider:
        url = provider.start_container("fake-env:1", env_vars={"A": "b"})
        provider.wait_for_ready(url)
        assert isinstance(url, str)
        assert len(cloud.boxes) == 1
        with pytest.raises(UsageError, match="started a server already"):
            provider.start_container("fake-env:1")
        for _ in range(2):
            with GenericEnvClient(base_url=url + "/").sync() as client:
                assert client.reset().done is False
                assert client.sandbox.ref == provider.sandbox.ref
        assert len(cloud.boxes) == 1
        assert addresses.find(url) is not None
    assert addresses.find(url) is None
    assert not cloud.boxes
    provider.stop_container()


@pytest.mark.anyio
async def test_a_client_that_owns_its_provider(cloud: FakeCloud) -> None:
    """``from_docker_image`` with a provider: started on await, by any way of driving a coroutine, gone with the client.

    Mutation: forget to stop the container at close
    """
    handle = GenericEnvClient.from_docker_image("fake-env:1", provider=on(cloud), env_vars={"A": "b"})
    assert not cloud.boxes
    client = await asyncio.create_task(handle)
    assert len(cloud.boxes) == 1
    assert (await client.reset()).done is False
    await client.close()
    assert not cloud.boxes
    with pytest.raises(UsageError, match="used already"):
        await handle
    (client,) = await asyncio.gather(GenericEnvClient.from_docker_image("fake-env:1", provider=on(cloud)))
    await client.close()
    assert not cloud.boxes


def test_blocking(cloud: FakeCloud) -> None:
    """``.sync()`` and ``asyncio.run`` of the handle itself."""
    with GenericEnvClient.from_docker_image("fake-env:1", provider=on(cloud)).sync() as client:
        assert client.reset().done is False
    assert not cloud.boxes

    async def use(started: Any) -> None:
        await (await started).close()

    asyncio.run(use(GenericEnvClient.from_docker_image("fake-env:1", provider=on(cloud))))
    assert not cloud.boxes


class Own(ContainerProvider):
    """A user's own class, with the three methods of the interface."""

    def __init__(self, address: str) -> None:
        self.address, self.calls = address, []  # type: ignore[var-annotated]

    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        self.calls.append(("start", image, port, env_vars, kwargs))
        return self.address

    def stop_container(self) -> None:
        self.calls.append("stop")


class OwnRuntime(RuntimeProvider):
    def __init__(self, address: str) -> None:
        self.address, self.calls = address, []  # type: ignore[var-annotated]

    def start(self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any) -> str:
        self.calls.append("start")
        return self.address

    def stop(self) -> None:
        self.calls.append("stop")

    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        self.calls.append("ready")


def test_classes_of_users() -> None:
    """Their methods are called in order, their arguments passed on, and they are stopped however it ends.

    Mutation: leave the provider running when no session can be opened
    """
    with serve("echo_env.server.app:app", cwd=ROOT / "envs") as address:
        own = Own(f"http://{address}")
        with GenericEnvClient.from_docker_image("img", provider=own, port=7, env_vars={"A": "b"}, more=1).sync() as env:
            assert env.reset().done is False
            assert own.calls == [("start", "img", 7, {"A": "b"}, {"more": 1})]
        assert own.calls[-1] == "stop"
        runtime = OwnRuntime(f"http://{address}")
        with GenericEnvClient.from_env("org/name", use_docker=False, provider=runtime).sync() as env:
            assert env.reset().done is False
        assert runtime.calls == ["start", "ready", "stop"]
    dead = OwnRuntime(f"http://{address}")
    with pytest.raises(ConnectionError):
        GenericEnvClient.from_env("org/name", use_docker=False, provider=dead).sync()
    assert dead.calls == ["start", "ready", "stop"]
    late = Own(f"http://{address}")
    late.wait_for_ready = lambda url: ContainerProvider.wait_for_ready(late, url, 0.2)  # type: ignore[method-assign,assignment,misc]
    with pytest.raises(ReadyTimeout):
        GenericEnvClient.from_docker_image("img", provider=late).sync()
    assert late.calls[-1] == "stop"


def test_what_is_refused() -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match="did you mean 'env_vars'"):
        GenericEnvClient.from_docker_image("img", env_var={"A": "b"})
    with pytest.raises(ConfigError, match="write org/name"):
        GenericEnvClient.from_env("name")
    with pytest.raises(ConfigError, match="no start_container"):
        GenericEnvClient.from_docker_image("img", provider=object())
    with pytest.raises(CapabilityError, match="does not reload"):
        UVProvider(project_path=".", reload=True)


def test_the_image_of_a_space() -> None:
    """``from_env`` names the image that the hub publishes for a Space."""
    seen: list[Any] = []

    class Naming(Own):
        def start_container(self, image: str, *args: Any, **kwargs: Any) -> str:
            seen.append((image, kwargs))
            raise RuntimeError("enough")

    cases: list[tuple[dict[str, Any], str]] = [({}, "org-name_x:latest"), ({"tag": "v1", "port": 3}, "org-name_x:v1")]
    for fields, image in cases:
        with pytest.raises(RuntimeError, match="enough"):
            GenericEnvClient.from_env("Org/Name_x", provider=Naming(""), **fields).sync()
        assert seen[-1][0] == f"registry.hf.space/{image}"
    assert seen[-1][1] == {"port": 3}


def test_what_is_forgotten_ends_with_the_process(cloud: FakeCloud) -> None:
    """A script that keeps only the address and never stops leaves nothing behind.

    Mutation: hold the started server weakly
    """
    script = (
        "import gc, sys\n"
        "from openenv_adapters.containers.providers import LaunchedContainer\n"
        "from openenv_sandbox.testing.fake import FakeProvider\n"
        "url = LaunchedContainer(FakeProvider, {'address': sys.argv[1]}).start_container('fake-env:1')\n"
        "gc.collect()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, cloud.address], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not cloud.boxes
