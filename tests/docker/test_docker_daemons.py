"""Daemons elsewhere than at the default socket: behind TLS, in a context; and images of another architecture."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox import _dockerhost, launch, sandbox
from openenv_sandbox.errors import ConfigError, ImageError, ProviderUnavailable
from openenv_sandbox.image import parse
from openenv_sandbox.spec import SandboxSpec
from tests.docker.tls import behind_tls, certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker

    from openenv_sandbox.provider import Prepared

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

HI = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "keys")


@pytest.fixture(scope="module")
def secured(keys: Path) -> Iterator[str]:
    target = _dockerhost.resolve().socket_path
    assert target is not None
    with behind_tls(target, keys) as url:
        yield url


def by_variables(monkeypatch: pytest.MonkeyPatch, url: str, folder: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", url)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(folder))


def by_context(monkeypatch: pytest.MonkeyPatch, url: str, folder: Path, config: Path) -> None:
    """As ``docker context create`` and ``docker context use`` leave it."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    digest = hashlib.sha256(b"far").hexdigest()
    meta, tls = config / "contexts" / "meta" / digest, config / "contexts" / "tls" / digest / "docker"
    meta.mkdir(parents=True)
    tls.mkdir(parents=True)
    (config / "config.json").write_text('{"currentContext": "far"}')
    described = {"Name": "far", "Endpoints": {"docker": {"Host": url, "SkipTLSVerify": False}}}
    (meta / "meta.json").write_text(json.dumps(described))
    for name in ("ca.pem", "cert.pem", "key.pem"):
        shutil.copy(folder / name, tls / name)


@pytest.mark.parametrize("how", ["variables", "context"])
async def test_a_daemon_behind_tls(
    secured: str, keys: Path, echo_image: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Launched, stepped, commands with input and files: all of it over TLS, by DOCKER_* variables or a context.

    Mutation: `_docker_tls` says nothing at the end of input
    """
    if how == "variables":
        by_variables(monkeypatch, secured, keys)
    else:
        by_context(monkeypatch, secured, keys, tmp_path)
    async with launch(echo_image.ref, provider="docker") as env:
        assert env.sandbox.ref.scope == secured
        await env.reset()
        assert "hi" in str((await env.step(HI)).observation)
        assert (await env.sandbox.exec("cat; exit 3", stdin=b"in")).stdout == b"in"
        await env.sandbox.write("/tmp/x", b"\x00\xff" * 100_000)
        assert await env.sandbox.read("/tmp/x") == b"\x00\xff" * 100_000


async def test_no_network_over_tls(
    secured: str, keys: Path, echo_image: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay through a command's input and output passes TLS too."""
    by_variables(monkeypatch, secured, keys)
    async with launch(echo_image.ref, provider="docker", network="none") as env:
        await env.reset()
        assert "hi" in str((await env.step(HI)).observation)


async def test_a_folder_is_built_over_tls(
    secured: str, keys: Path, tmp_path: Path, engine: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either builder gets the certificates."""
    from openenv_sandbox import _builders, build, image

    by_variables(monkeypatch, secured, keys)
    folder = tmp_path / f"tls-env-{os.getpid()}"
    folder.mkdir()
    (folder / "openenv.yaml").write_text(f"name: {folder.name}\n")
    (folder / "Dockerfile").write_text('FROM scratch\nCOPY openenv.yaml /\nCMD ["x"]\n')
    parsed, host = await asyncio.to_thread(image.parse, folder), _dockerhost.resolve()
    for _ in ("the docker command", "the classic builder"):
        built = await build.build_folder(parsed, host=host, on_log=lambda line: None, keep_openenv=True)
        assert engine.images.get(built.tag).id == built.id
        engine.images.remove(built.tag)
        monkeypatch.setattr(_builders, "find_buildkit", lambda: None)


@pytest.mark.parametrize("what", ["another CA", "no client certificate", "a name that is not in it"])
async def test_certificates_that_do_not_fit(
    secured: str, keys: Path, tmp_path: Path, echo_image: Prepared, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It is said that it is the certificates, and where they belong; it is not taken for a daemon that is down.

    Mutation: `translate` does not look for OpenSSL's words
    """
    folder, url = tmp_path / "keys", secured
    if what == "another CA":
        certificates(folder)
        for name in ("cert.pem", "key.pem"):
            shutil.copy(keys / name, folder / name)
    else:
        shutil.copytree(keys, folder)
    if what == "no client certificate":
        (folder / "cert.pem").unlink()
    if what.startswith("a name"):
        url = url.replace("127.0.0.1", "localhost")
    by_variables(monkeypatch, url, folder)
    with pytest.raises(ProviderUnavailable, match="no TLS with the docker daemon") as caught:
        await launch(echo_image.ref, provider="docker")
    assert "DOCKER_CERT_PATH" in str(caught.value.hint)
    assert not caught.value.retryable


async def test_a_key_that_is_missing(
    secured: str, keys: Path, tmp_path: Path, echo_image: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(keys, tmp_path / "keys")
    (tmp_path / "keys" / "key.pem").unlink()
    by_variables(monkeypatch, secured, tmp_path / "keys")
    with pytest.raises(ConfigError, match="certificates in"):
        await launch(echo_image.ref, provider="docker")


def test_default_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order: the system's, a rootless daemon's, Docker Desktop's, podman's; one that is dead hides no other.

    Mutation: `resolve` takes the first socket that exists
    """
    import socket

    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setattr(_dockerhost, "SYSTEM", str(tmp_path / "d.sock"))
    monkeypatch.setattr(_dockerhost, "PODMAN", str(tmp_path / "p.sock"))
    found = _dockerhost.resolve()
    assert (found.socket_path, found.source) == (str(tmp_path / "d.sock"), "the default socket")
    places = [
        ("p.sock", "podman's socket"),
        ("r/podman/podman.sock", "podman's socket"),
        ("h/.docker/desktop/docker.sock", "Docker Desktop's socket"),
        ("h/.docker/run/docker.sock", "Docker Desktop's socket"),
        ("r/docker.sock", "the rootless daemon's socket"),
        ("d.sock", "the default socket"),
    ]
    listeners = []
    try:
        for name, whose in places:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            listeners.append(socket.socket(socket.AF_UNIX))
            listeners[-1].bind(str(path))
            listeners[-1].listen()
            found = _dockerhost.resolve()
            assert (found.socket_path, found.source) == (str(path), whose)
        listeners.pop().close()  # the file of the last one stays
        assert _dockerhost.resolve().source == "the rootless daemon's socket"
    finally:
        for listener in listeners:
            listener.close()
    assert _dockerhost.resolve().source == "the default socket"


@pytest.fixture
def foreign(engine: docker.DockerClient) -> Iterator[str]:
    """An image for another architecture than this machine's."""
    here = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    other = "arm64" if here != "arm64" else "amd64"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config: dict[str, Any] = {
        "architecture": other,
        "os": "linux",
        "config": {"Cmd": ["/file"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    name = f"openenv-test/foreign-{os.getpid()}:1"
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for member, data in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    engine.images.load(whole.getvalue())
    yield name
    engine.images.remove(name, force=True)


async def test_an_image_of_another_architecture(foreign: str, engine: docker.DockerClient) -> None:
    """It is refused before a container is made, and both architectures are named; with ``emulation`` it is tried.

    Mutation: `ensure` does not look at the image's architecture
    """
    before = {container.id for container in engine.containers.list(all=True)}
    stages: list[str] = []
    with pytest.raises(ImageError, match=r"is an image for \w+64, and the daemon's machine is \w+64") as caught:
        await sandbox(foreign, provider="docker", on_event=lambda event: stages.append(event.stage))
    assert "emulation=True" in str(caught.value.hint)
    assert "creating" not in stages
    provider, said = await asyncio.to_thread(DockerProvider, {"emulation": True}), list[str]()
    try:
        assert (await provider.prepare(SandboxSpec(image=foreign), parse(foreign), on_log=said.append)).ref == foreign
    finally:
        await provider.aclose()
    assert "it runs emulated" in said[0]
    assert {container.id for container in engine.containers.list(all=True)} <= before
