"""What only this machine has, for backends that take refs: built by the daemon, pushed to the configured registry."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import build, launch, sandbox
from openenv_sandbox.errors import BuildError, CapabilityError
from openenv_sandbox.testing.fake import FakeCloud
from tests.docker.pushes import PushRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker

    from openenv_sandbox.events import Event

pytestmark = [pytest.mark.docker, pytest.mark.anyio]

NAME = f"push-env-{os.getpid()}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.mkdir()
    (path / "openenv.yaml").write_text(f"name: {NAME}\n")
    (path / "Dockerfile").write_text('FROM scratch\nENV MARK=m\nCOPY openenv.yaml /\nCMD ["fake-env"]\n')
    return path


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: docker.DockerClient) -> Iterator[PushRegistry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    # Images of a few bytes: neither a base to push nor an openenv to install.
    monkeypatch.setattr(build, "build_folder", partial(build.build_folder, keep_openenv=True))
    with PushRegistry() as registry:
        monkeypatch.setenv("OPENENV_IMAGE__REGISTRY", f"{registry.address}/team")
        yield registry
    for made in engine.images.list():
        for tag in made.tags:
            if NAME in tag or registry.address in tag:
                engine.images.remove(tag, force=True)


@pytest.fixture
def local_ref(tmp_path: Path, engine: docker.DockerClient) -> str:
    """An image that was neither pulled nor pushed."""
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text(f'FROM scratch\nCOPY Dockerfile /{NAME}\nCMD ["fake-env"]\n')
    engine.images.build(path=str(tmp_path / "context"), tag=f"localhost/{NAME}:one")
    return f"localhost/{NAME}:one"


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


async def test_a_folder_is_built_and_pushed_once(folder: Path, registry: PushRegistry, cloud: FakeCloud) -> None:
    """By a tag of its content, for everyone who waits, with the log streamed; what is there is not pushed again.

    Mutation: pushing.Push.run does not look whether the registry has the tag
    """
    provider = cloud.provider(images=frozenset({"ref"}))
    events: list[Event] = []

    async def one() -> str:
        async with sandbox(folder, provider=provider, on_event=events.append) as box:
            return str(box.info.image)

    names = set(await asyncio.gather(*(one() for _ in range(4))))
    assert len(names) == 1
    name = names.pop()
    assert name.startswith(f"{registry.address}/team/{NAME}:")
    assert [f"{registry.address}/{put}" for put in registry.puts] == [name]
    said = [event.message for event in events if event.stage == "building"]
    assert any("COPY openenv.yaml" in line for line in said)
    assert f"pushing {name}" in said
    assert await one() == name
    assert len(registry.puts) == 1
    (folder / "more").write_text("another content")
    assert await one() != name
    assert len(registry.puts) == 2


async def test_the_registrys_login(local_ref: str, tmp_path: Path, registry: PushRegistry, cloud: FakeCloud) -> None:
    """It is taken from where the docker command line keeps it; the backend gets it too; the error names the way.

    Mutation: Engine.push sends no login
    """
    registry.login = ("me", "r3gistry-pass")
    provider = cloud.provider(images=frozenset({"ref"}), private_images=True)
    with pytest.raises(BuildError, match="could not be pushed") as caught:
        await launch(local_ref, provider=provider)
    assert "docker login" in (caught.value.hint or "")
    assert "pushing" in caught.value.log
    entry = {"username": "me", "password": "r3gistry-pass"}
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.address: entry}}))
    async with sandbox(local_ref, provider=provider):
        assert len(registry.puts) == 1
    assert not cloud.live()


async def test_a_build_that_fails_carries_its_log(
    folder: Path, base_image: str, registry: PushRegistry, cloud: FakeCloud
) -> None:
    (folder / "Dockerfile").write_text(f"FROM {base_image}\nRUN echo last words; exit 3\n")
    with pytest.raises(BuildError) as caught:
        await launch(folder, provider=cloud.provider(images=frozenset({"ref"})), command=["fake-env"])
    assert "last words" in caught.value.log
    assert not registry.puts


async def test_an_image_of_this_machine_alone(
    local_ref: str,
    registry: PushRegistry,
    cloud: FakeCloud,
    engine: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ref that was neither pulled nor pushed is pushed; without a registry that is said before anything is made.

    Mutation: pushing.needed looks at folders only
    """
    provider = cloud.provider(images=frozenset({"ref"}))
    async with sandbox(local_ref, provider=provider) as box:
        name = str(box.info.image)
        assert name.startswith(f"{registry.address}/team/{NAME}:")
    monkeypatch.delenv("OPENENV_IMAGE__REGISTRY")
    engine.images.remove(name)  # else the daemon knows that a registry has it
    before = len(cloud.calls)
    with pytest.raises(CapabilityError, match="only the local docker daemon") as caught:
        await sandbox(local_ref, provider=provider)
    assert "OPENENV_IMAGE__REGISTRY" in (caught.value.hint or "")
    assert len(cloud.calls) == before


async def test_a_folder_without_a_registry_is_refused(
    folder: Path, registry: PushRegistry, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENENV_IMAGE__REGISTRY")
    with pytest.raises(CapabilityError, match="is a folder") as caught:
        await launch(folder, provider=cloud.provider(images=frozenset({"ref"})))
    assert "OPENENV_IMAGE__REGISTRY" in (caught.value.hint or "")
