"""One image for the whole folder, and a daemon that is left as it was found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest
from openenv_providers import _docker_images
from openenv_providers.docker import DockerProvider

from openenv_sandbox import _dockerhost, image
from openenv_sandbox.provider import Prepared, SandboxRef
from tests.conftest import ENGINES_REQUIRED
from tests.docker.docks import Docker
from tests.docker.proxy import DaemonProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


REPO = Path(__file__).resolve().parents[2]
BASE = "openenv-base:local"


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The daemon, seen without the provider under test."""
    client = docker.DockerClient(base_url=_dockerhost.resolve().url, timeout=120)
    yield client
    client.close()


@pytest.fixture(scope="session")
def base_image(engine: docker.DockerClient) -> str:
    """A base image that needs no registry."""
    try:
        engine.images.get(BASE)
    except docker.errors.ImageNotFound:
        say = pytest.fail if ENGINES_REQUIRED else pytest.skip
        say(f"{BASE} is missing: make base-image")
    return BASE


@pytest.fixture(scope="session")
def echo_image(
    engine: docker.DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prepared]:
    """echo_env with the running openenv inside, built once and removed at the end."""
    from openenv_sandbox.build import build_folder

    folder = image.parse(REPO / "envs" / "echo_env")
    wheels = tmp_path_factory.mktemp("wheels")
    before = {name for found in engine.images.list() for name in found.tags}
    built = asyncio.run(
        build_folder(
            folder, host=_dockerhost.resolve(), on_log=lambda line: None, base_image=base_image, cache_dir=wheels
        )
    )
    yield Prepared(built.tag, built.config, built.id, owned=True)
    if built.tag not in before:
        engine.images.remove(built.tag, force=True)


@pytest.fixture
async def dock(engine: docker.DockerClient, echo_image: Prepared) -> AsyncIterator[Docker]:
    provider = await asyncio.to_thread(DockerProvider)
    found = Docker(provider, engine, echo_image)
    yield found
    for container in await asyncio.to_thread(found.containers):
        await provider.delete(SandboxRef("docker", provider.scope(), container.id))
    for prepared in await _docker_images.ours(provider.daemon):
        if found.run[:8] in prepared.ref:
            await provider.drop(prepared)
    await provider.aclose()


@pytest.fixture
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProxy]:
    """A daemon that fails as told; a rule that nothing ran into fails the test."""
    target = _dockerhost.resolve().socket_path
    if target is None:
        pytest.skip("needs a daemon on a unix socket")
    with DaemonProxy(target, tmp_path_factory.mktemp("proxy") / "d.sock") as found:
        yield found
        unused = found.faults.unused()
    assert unused == []
