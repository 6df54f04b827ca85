"""ENV, USER and WORKDIR of an image, on backends that drop them; sandboxes whose image says nothing; attaching."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import attach, registry, sandbox
from openenv_sandbox.capabilities import ExecCapabilities
from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.image import parse, resolve_config
from openenv_sandbox.provider import Image, ImageConfig, Prepared
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.starting import supplied
from openenv_sandbox.testing.fake import FakeCloud, FakeProvider
from tests.unit.launch_harness import nothing_left, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SCRIPT = 'echo "$(id -u) $(pwd) $MARK $OTHER"; exec sleep 3000'
USER = "65534" if os.getuid() == 0 else str(os.getuid())
CONFIG = ImageConfig(cmd=("sh", "-c", SCRIPT), env={"MARK": "m a'rk", "OTHER": "image"}, user=USER, workdir="/usr")
BACKENDS: dict[str, dict[str, Any]] = {
    "exec": {"start": "exec"},
    "exec-text": {"start": "exec", "exec": ExecCapabilities(binary=False, split=False, stream=False, user=False)},
    "no-user": {"start": "command", "runs_image": False, "keeps": frozenset(), "user": False},
    "drops-user": {"start": "command", "keeps": frozenset({"env", "workdir"}), "user": False},
}


def provider(cloud: FakeCloud, config: ImageConfig | None, **caps: Any) -> type[FakeProvider]:
    """One whose images have ``config``; what ``caps`` says that it keeps, it gives to the command."""
    caps = {"exec": ExecCapabilities(stdin_stream=True, user=False), **caps}

    class Configured(cloud.provider(**caps)):  # type: ignore[misc]
        async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: object) -> Prepared:
            return Prepared(image.name, image=config)

        async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Any:
            kept = self.capabilities.image_parts if config is not None and self.capabilities.start != "exec" else ()
            if config is not None and "env" in kept:
                spec = spec.model_copy(update={"env": {**config.env, **spec.env}})
            folder = spec.workdir or (config.workdir if config is not None and "workdir" in kept else None)
            argv = spec.command
            if argv is not None and folder is not None:
                argv = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, *argv)
            return await super().create(prepared, spec.model_copy(update={"command": argv}), key=key)

    return Configured


@pytest.mark.parametrize("backend", sorted(BACKENDS))
async def test_env_user_and_folder_of_the_image(backend: str) -> None:
    """The server and every command run as in a container of the image, whatever the backend drops.

    Mutation: pipeline passes no `added` to create or to the faces
    """
    with FakeCloud() as cloud:
        cls = provider(cloud, CONFIG, **BACKENDS[backend])
        async with sandbox("fake-env:1", provider=cls, env={"OTHER": "mine"}) as box:

            async def spoke() -> bool:
                return b"\n" in await box.logs()

            await until(spoke)
            assert (await box.logs()).decode() == f"{USER} /usr m a'rk mine\n"
            if cls.capabilities.start == "exec":
                said = await box.exec('echo "$(id -u) $(pwd) $MARK"')
                assert said.text() == f"{USER} /usr m a'rk\n"
                assert (await box.exec("pwd; echo $MARK", cwd="/", env={"MARK": "x"})).text() == "/\nx\n"
        await nothing_left(cloud)


async def test_a_user_that_create_cannot_choose() -> None:
    """It is refused where the image's own user applies, and supplied by core where the backend drops users anyway.

    Mutation: capcheck looks at `user` alone, or at_create leaves the user in the spec
    """
    with FakeCloud() as cloud:
        cls = provider(cloud, CONFIG, **BACKENDS["drops-user"])
        async with sandbox("fake-env:1", provider=cls, user="0:0" if USER == "65534" else USER) as box:

            async def spoke() -> bool:
                return b"\n" in await box.logs()

            await until(spoke)
            assert (await box.logs()).startswith(b"0 " if USER == "65534" else USER.encode())
        with pytest.raises(CapabilityError, match="user"):
            await sandbox("fake-env:1", provider=provider(cloud, CONFIG, user=False), user="7")


async def test_what_the_user_says_comes_first() -> None:
    caps, spec = FakeProvider.capabilities, SandboxSpec(image="x", user="7", workdir="/srv")
    assert supplied(spec, CONFIG, caps) == ImageConfig()
    assert supplied(spec, CONFIG, replace(caps, keeps=frozenset({"env"}))) == ImageConfig(user="7", workdir="/srv")


@pytest.mark.parametrize("caps", [{"start": "exec"}, {"start": "command", "runs_image": False}])
async def test_a_sandbox_without_a_server_is_said(caps: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing says what the image runs, commands work and the log says that no server was started.

    Mutation: config_for returns silently where no server is awaited
    """
    with FakeCloud() as cloud:
        cls = provider(cloud, ImageConfig(), **caps)
        async with sandbox("template:t1", provider=cls) as box:
            assert (await box.exec("echo on")).text() == "on\n"
            assert "no server is started" in caplog.text
            assert "command=[" in caplog.text
        await nothing_left(cloud)


async def test_attach_finds_the_server() -> None:
    """Output, end and the image's own variables are those of the server that another process started.

    Mutation: take_over asks the idle process that the backend booted
    """
    with FakeCloud() as cloud:
        config = ImageConfig(cmd=("sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 7"))
        cls = provider(cloud, ImageConfig(cmd=config.cmd, env={"MARK": "m"}), start="exec")
        box = await sandbox("fake-env:1", provider=cls)

        async def noted() -> bool:
            return (await box.exec('cat "$TMPDIR/.oe-server"')).ok

        await until(noted)
        await box.detach()
        with registry.registered(cls):
            async with attach(box.ref) as again:
                assert await again.logs() == b"one\n"
                assert (await again.exec("echo $MARK; touch go")).text() == "m\n"
                assert (await asyncio.wait_for(again.wait_exit(), 60)).code == 7
                assert await again.logs() == b"one\ntwo\n"
        await nothing_left(cloud)


async def test_a_folder_has_what_its_base_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Dockerfile stands on an image: its variables, user and folder are the result's, where they can be asked.

    Mutation: resolve_config reads the Dockerfile alone
    """
    from openenv_sandbox import _remote_config

    async def known(ref: str, **kw: object) -> ImageConfig:
        assert ref == "registry.test/base:1"
        return ImageConfig(("/init",), ("base",), {"PATH": "/opt/bin:/bin", "A": "1"}, "app", "/base")

    monkeypatch.setattr(_remote_config, "resolve", known)
    monkeypatch.delenv("OPENENV_BASE_IMAGE", raising=False)
    (tmp_path / "openenv.yaml").write_text("name: e\napp: server.app:app\n")
    (tmp_path / "Dockerfile").write_text('FROM registry.test/base:1 AS b\nFROM b\nENV A=2\nCMD ["serve"]\n')
    config = await resolve_config(parse(tmp_path), base=True)
    assert config == ImageConfig(("/init",), ("serve",), {"PATH": "/opt/bin:/bin", "A": "2"}, "app", "/base")
    (tmp_path / "Dockerfile").write_text("FROM registry.test/base:1\nENV A=2\n")
    config = await resolve_config(parse(tmp_path), base=True)
    assert config is not None
    assert config.argv[:3] == ("python", "-m", "uvicorn")
    assert config.user == "app"
