"""A private registry by every way in which users keep its login: a real one, which wants a password."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox import build, launch, sandbox
from openenv_sandbox.errors import AuthError, BuildError, ConfigError, OpenEnvError
from openenv_sandbox.image import parse
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.fake import FakeCloud
from tests.conftest import ENGINES_REQUIRED
from tests.docker import private
from tests.docker.private import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker

    from openenv_sandbox.provider import Prepared

pytestmark = [pytest.mark.docker, pytest.mark.anyio]

NAME = f"private-env-{os.getpid()}"
WRONG = "wr0ng-pass-of-me"


@pytest.fixture(scope="module")
def registry(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if private.MISSING:
        say = pytest.fail if ENGINES_REQUIRED else pytest.skip
        say(f"{private.MISSING[0]} is missing: apt-get install docker-registry apache2-utils")
    with private.private_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address
        for made in engine.images.list():
            for tag in made.tags:
                if address in tag or NAME in tag:
                    engine.images.remove(tag, force=True)


def push(engine: docker.DockerClient, name: str, ref: str) -> None:
    """Put an image there; the daemon keeps its layers and forgets the name."""
    repository, _, tag = ref.rpartition(":")
    engine.images.get(name).tag(repository, tag)
    login = {"username": USER, "password": PASSWORD}
    for item in engine.images.push(repository, tag, auth_config=login, stream=True, decode=True):
        assert "error" not in item, item
    forget(engine, ref)


def forget(engine: docker.DockerClient, ref: str) -> None:
    for made in engine.images.list(ref):
        engine.images.remove(ref if made.tags else str(made.id), force=True)


@pytest.fixture(scope="module")
def small(registry: str, engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a few bytes, which only the registry has."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY Dockerfile /{NAME}\n")
    engine.images.build(path=str(folder), tag=f"{NAME}:1")
    push(engine, f"{NAME}:1", f"{registry}/team/small:1")
    return f"{registry}/team/small:1"


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the docker command line keeps its logins, with a credential helper that knows ours."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    answer = json.dumps({"Username": USER, "Secret": PASSWORD})
    helper = tmp_path / "docker-credential-oetest"
    helper.write_text(f"#!/bin/sh\n[ \"$1\" = get ] && cat >/dev/null && echo '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def auths(registry: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"auths": {registry: {"auth": base64.b64encode(f"{USER}:{password}".encode()).decode()}}}


def own_file(registry: str, password: str = PASSWORD) -> str:
    return f'[image.registries."{registry}"]\nusername = "{USER}"\npassword = "{password}"\n'


async def pull(ref: str, **fields: Any) -> Prepared:
    """What a launch does with a ref before it creates anything."""
    provider = await asyncio.to_thread(DockerProvider)
    try:
        spec = SandboxSpec(image=ref, **fields)
        return await provider.prepare(spec, await asyncio.to_thread(parse, ref), on_log=lambda line: None)
    finally:
        await provider.aclose()


@pytest.mark.parametrize("kept", ["auths", "credHelpers", "credsStore", "argument"])
async def test_every_place_of_a_login(
    small: str, registry: str, docker_config: Path, engine: docker.DockerClient, kept: str
) -> None:
    """The daemon pulls with the login from the docker configuration, a credential helper, or the call.

    Scenario: H02
    Mutation: `_docker_images._pull` asks nobody for a login
    """
    forget(engine, small)
    written = {
        "auths": auths(registry),
        "credHelpers": {"credHelpers": {registry: "oetest"}},
        "credsStore": {"auths": {registry: {}}, "credsStore": "oetest"},
    }.get(kept, {})
    (docker_config / "config.json").write_text(json.dumps(written))
    fields = {"registry_auth": {"username": USER, "password": PASSWORD}} if kept == "argument" else {}
    assert (await pull(small, **fields)).ref == small
    assert small in engine.images.get(small).tags


async def test_a_login_made_meanwhile_counts(
    small: str, registry: str, docker_config: Path, engine: docker.DockerClient
) -> None:
    """A provider that ran before ``docker login`` did sees it: what the daemon's client read at first is not kept.

    Mutation: `_pull` leaves logins to the SDK, which reads them once
    """
    forget(engine, small)
    provider = await asyncio.to_thread(DockerProvider)
    image = await asyncio.to_thread(parse, small)
    try:
        with pytest.raises(AuthError, match="docker login"):
            await provider.prepare(SandboxSpec(image=small), image, on_log=lambda line: None)
        (docker_config / "config.json").write_text(json.dumps(auths(registry)))
        assert (await provider.prepare(SandboxSpec(image=small), image, on_log=lambda line: None)).ref == small
    finally:
        await provider.aclose()


async def test_a_wrong_password_is_an_error_of_ours(
    small: str, registry: str, docker_config: Path, engine: docker.DockerClient, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the registry's answer and the way out, and neither the wrong password nor any other stands in it.

    Scenario: H02
    Mutation: the row "unauthorized" is taken out of the table
    """
    caplog.set_level("DEBUG")
    forget(engine, small)
    (docker_config / "config.json").write_text(json.dumps(auths(registry, WRONG)))
    with pytest.raises(AuthError, match="unauthorized") as caught:
        await launch(small, provider="docker")
    assert "docker login" in str(caught.value.hint)
    assert (caught.value.outcome, caught.value.retryable) == ("failed", False)
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    encoded = base64.b64encode(f"{USER}:{WRONG}".encode()).decode()
    assert not [secret for secret in (WRONG, PASSWORD, encoded) if secret in said]


async def test_a_helper_that_is_missing_is_named(small: str, docker_config: Path, engine: docker.DockerClient) -> None:
    """It is no daemon that cannot be reached."""
    forget(engine, small)
    host = small.partition("/")[0]
    (docker_config / "config.json").write_text(json.dumps({"credHelpers": {host: "nowhere"}}))
    with pytest.raises(ConfigError, match="docker-credential-nowhere"):
        await pull(small)


async def test_launch_of_a_private_ref(
    registry: str, echo_image: Prepared, docker_config: Path, engine: docker.DockerClient, state_dir: Path
) -> None:
    """From the user's own file: pulled with its login, booted, stepped; without it nothing runs.

    Scenario: H02
    Mutation: `with_login` gives no backend the login of the user's own file
    """
    ref = f"{registry}/team/echo:1"
    await asyncio.to_thread(push, engine, echo_image.ref, ref)
    with pytest.raises(AuthError):
        await launch(ref, provider="docker")
    own = state_dir / "config" / "openenv" / "openenv.toml"
    own.parent.mkdir(parents=True)
    own.write_text(own_file(registry))
    async with launch(ref, provider="docker") as env:
        await env.reset()
        action = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
        assert "hi" in str((await env.step(action)).observation)


async def test_a_folder_is_pushed_with_the_login(
    registry: str,
    docker_config: Path,
    tmp_path: Path,
    engine: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a backend that takes refs: refused with a wrong password, pushed with the right one, and there to be pulled.

    Scenario: H02
    Mutation: `Push.run` asks nobody for the registry's login
    """
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "openenv.yaml").write_text(f"name: {NAME}\n")
    (folder / "Dockerfile").write_text('FROM scratch\nCOPY openenv.yaml /\nCMD ["fake-env"]\n')
    monkeypatch.setenv("OPENENV_IMAGE__REGISTRY", f"{registry}/pushed")
    monkeypatch.setattr(build, "build_folder", partial(build.build_folder, keep_openenv=True))
    with FakeCloud() as cloud:
        provider = cloud.provider(images=frozenset({"ref"}), private_images=True)
        (docker_config / "config.json").write_text(json.dumps(auths(registry, WRONG)))
        with pytest.raises(BuildError, match="could not be pushed") as caught:
            await sandbox(folder, provider=provider)
        said = "".join(traceback.format_exception(caught.value)) + str(caught.value.log)
        assert WRONG not in said
        assert "docker login" in str(caught.value.hint)
        (docker_config / "config.json").write_text(json.dumps(auths(registry)))
        async with sandbox(folder, provider=provider) as box:
            ref = str(box.info.image)
        assert ref.startswith(f"{registry}/pushed/{NAME}:")
    await asyncio.to_thread(forget, engine, ref)
    assert (await pull(ref)).ref == ref


async def test_a_private_base_by_the_classic_builder(
    small: str, registry: str, docker_config: Path, tmp_path: Path, engine: docker.DockerClient, monkeypatch: Any
) -> None:
    """A folder whose base image is private is built, without the docker command line too.

    Mutation: `Engine.build` sends no logins
    """
    from openenv_sandbox import _builders, _dockerhost

    monkeypatch.setattr(_builders, "find_buildkit", lambda: None)
    monkeypatch.delenv("OPENENV_BASE_IMAGE", raising=False)
    folder = tmp_path / f"{NAME}-on-private"
    folder.mkdir()
    (folder / "openenv.yaml").write_text(f"name: {NAME}-on-private\n")
    (folder / "Dockerfile").write_text(f'FROM {small}\nCOPY openenv.yaml /\nCMD ["fake-env"]\n')
    image = await asyncio.to_thread(parse, folder)
    host = _dockerhost.resolve()

    async def built() -> None:
        await asyncio.to_thread(forget, engine, small)
        await build.build_folder(image, host=host, on_log=lambda line: None, keep_openenv=True, base_image="")

    with pytest.raises(OpenEnvError, match=r"no basic auth|unauthorized"):
        await built()
    (docker_config / "config.json").write_text(json.dumps(auths(registry)))
    await built()
