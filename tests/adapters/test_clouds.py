"""The classes of one cloud each: what their arguments become, and what they refuse."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from openenv.core import GenericEnvClient
from openenv.core.containers.runtime.aca_provider import ACASandboxProvider
from openenv.core.containers.runtime.daytona_provider import DaytonaProvider
from openenv.core.containers.runtime.modal_provider import ModalProvider
from openenv.core.containers.runtime.novita_provider import NovitaSandboxProvider
from openenv_providers._aca_options import AcaOptions
from openenv_providers._e2b_options import CloudOptions
from openenv_providers._modal_convert import ModalOptions
from openenv_providers.daytona import DaytonaOptions

from openenv_sandbox.authoring.scaffold import scaffold
from openenv_sandbox.errors import CapabilityError, ConfigError
from openenv_sandbox.spec import Resources
from openenv_sandbox.testing import FakeCloud
from openenv_sandbox.testing.fake import FakeOptions, FakeProvider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openenv_sandbox.provider import Image, LogSink, Prepared, Sandbox
    from openenv_sandbox.spec import SandboxSpec

Seen = list[tuple[Any, Any]]


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def faked(face: type[Any], options: type[Any], cloud: FakeCloud) -> tuple[type[Any], Seen]:
    """The face on a fake cloud whose options are those of the real backend, and the specs that arrive there."""
    seen: Seen = []

    class Both(FakeOptions, options):  # type: ignore[misc]
        address: str = cloud.address

    class Provider(FakeProvider):
        Options = Both

        async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
            on_log("a line of the build")
            return await super().prepare(spec, image, on_log=on_log)

        async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
            seen.append((spec, self.options))
            return await super().create(prepared, spec.model_copy(update={"command": None}), key=key)

    return type(face.__name__, (face,), {"backend": Provider}), seen


def started(face: Any, image: str | None = "fake-env:1", **kwargs: Any) -> None:
    """It serves, and nothing is left."""
    with face:
        url = face.start_container(image, **kwargs)
        with GenericEnvClient(base_url=url).sync() as client:
            assert client.reset().done is False


def test_daytona(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are GiB there and MiB here; a client that owns the object names no image.

    Mutation: pass GiB as MiB; forget the image of the constructor
    """
    monkeypatch.setenv("DAYTONA_API_KEY", "the-key")
    face, seen = faked(DaytonaProvider, DaytonaOptions, cloud)
    lines: list[str] = []
    owned = face(
        image="fake-env:1",
        env_vars={"A": "1", "B": "1"},
        api_key=os.environ["DAYTONA_API_KEY"],
        public=True,
        resources=SimpleNamespace(cpu=2, memory=4, disk=8, gpu=None),
        target="eu",
        on_snapshot_create_logs=lines.append,
        cmd="serve --all",
        create_timeout=50,
    )
    with GenericEnvClient(provider=owned).sync() as client:
        assert client.reset().done is False
    assert not cloud.boxes
    spec, options = seen[0]
    assert (spec.env["A"], options.target, spec.exposure) == ("1", "eu", "public")
    assert spec.resources == Resources(cpus=2, memory_mb=4096, disk_mb=8192)
    assert (spec.command, spec.timeouts.create) == (("/bin/sh", "-c", "serve --all"), 50)
    assert "a line of the build" in lines
    started(owned, None, env_vars={"B": "2"}, port=9000)
    spec, _ = seen[1]
    assert (spec.env["A"], spec.env["B"], spec.port) == ("1", "2", 9000)
    started(face())
    spec, options = seen[2]
    assert (spec.resources, spec.command, options.target, spec.exposure) == (Resources(), None, None, "private")
    assert spec.timeouts.create == 300


def test_modal(cloud: FakeCloud) -> None:
    """The timeout is the time of use, so starting does not eat it.

    Mutation: take the timeout as the time until it is ready
    """
    face, seen = faked(ModalProvider, ModalOptions, cloud)
    started(face(app_name="mine", timeout=600, cpu=0.5, memory=512, use_sandbox_v2=True, env_vars={"A": "1"}))
    spec, options = seen[0]
    assert (options.app, spec.timeouts.episode, spec.env["A"]) == ("mine", 600, "1")
    assert spec.resources == Resources(cpus=0.5, memory_mb=512)


def test_novita(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template has its own sizes; the defaults of the arguments are not forced on it.

    Mutation: pass the default sizes with a template
    """
    monkeypatch.setenv("NOVITA_API_KEY", "the-key")
    face, seen = faked(NovitaSandboxProvider, CloudOptions, cloud)
    lines: list[str] = []
    given = {"api_key": "the-key", "domain": "d.example", "metadata": {"team": "a"}, "secure": True, "timeout": 60}
    started(face(**given, working_directory="/srv", on_build_logs=lines.append))
    spec, options = seen[0]
    assert (options.domain, spec.labels["team"], spec.workdir) == ("d.example", "a", "/srv")
    assert spec.resources == Resources(cpus=2, memory_mb=1024)
    assert spec.timeouts.episode == 60
    assert "a line of the build" in lines
    started(face(image="template:t1"), None, command="x")
    assert seen[1][0].resources == Resources()
    started(face(image="template:t1", cpu_count=4), None, command="x")
    assert seen[2][0].resources == Resources(cpus=4, memory_mb=1024)


def test_aca(cloud: FakeCloud) -> None:
    """Sizes as Kubernetes writes them; the port is public only when that is accepted.

    Mutation: read 1000m as a thousand cores; accept a public port by default
    """
    face, seen = faked(ACASandboxProvider, AcaOptions, cloud)
    where = {"subscription_id": "s", "resource_group": "g", "sandbox_group": "b", "region": "westus2"}
    more = {"labels": {"team": "a"}, "create_timeout": 40, "auto_suspend_seconds": 600, "disk_size": "20Gi"}
    started(face(**where, **more, cpu="500m", memory="1Gi", anonymous_port=True, credential="managed-identity"))
    spec, options = seen[0]
    assert {name: getattr(options, name) for name in where} == where
    assert (options.credential, options.idle_s, spec.labels["team"]) == ("managed-identity", 600, "a")
    assert spec.resources == Resources(cpus=0.5, memory_mb=1024, disk_mb=20480)
    assert (spec.exposure, spec.timeouts.create) == ("public", 40)
    started(face())
    assert seen[1][0].exposure == "private"
    assert seen[1][0].resources == Resources(cpus=1, memory_mb=2048)


@pytest.mark.parametrize(
    ("face", "arguments", "hint"),
    [
        (DaytonaProvider, {"api_key": "another"}, "DAYTONA_API_KEY"),
        (DaytonaProvider, {"auto_stop_interval": 0}, "timeouts"),
        (DaytonaProvider, {"resources": SimpleNamespace(cpu=1, gpu=1)}, "gpus"),
        (ModalProvider, {"surface_server_logs": True}, "logs"),
        (NovitaSandboxProvider, {"api_key": "another"}, "NOVITA_API_KEY"),
        (NovitaSandboxProvider, {"secure": False}, "token"),
        (NovitaSandboxProvider, {"template_name": "t"}, "template:NAME"),
        (NovitaSandboxProvider, {"surface_server_logs": True}, "the error"),
        (ACASandboxProvider, {"credential": object()}, "managed-identity"),
        (ACASandboxProvider, {"egress_policy": object()}, "network"),
        (ACASandboxProvider, {"auto_suspend_mode": "Disk"}, "memory"),
        (ACASandboxProvider, {"surface_server_logs": True}, "the error"),
        (ACASandboxProvider, {"sdk_kwargs": {"a": 1}}, "openenv providers aca"),
    ],
)
def test_what_cannot_be_honoured_is_refused(face: Any, arguments: dict[str, Any], hint: str) -> None:
    """Before anything starts, with what to use instead."""
    with pytest.raises(CapabilityError) as caught:
        face(**arguments)
    assert hint in (caught.value.hint or "")
    assert "another" not in str(caught.value)


def test_no_image_and_a_size_that_is_none() -> None:
    with pytest.raises(ConfigError, match="given no image"):
        ModalProvider().start_container()
    with pytest.raises(ConfigError, match="no size"):
        ACASandboxProvider(memory="lots")
    with pytest.raises(ConfigError, match="no number of cores"):
        ACASandboxProvider(cpu="all")


def test_a_dockerfile_names_its_folder(tmp_path: Path) -> None:
    """The folder that would be built from it; another Dockerfile is refused rather than not used.

    Mutation: take the parent folder unseen
    """
    folder = scaffold("game_env", tmp_path)
    assert DaytonaProvider.image_from_dockerfile(str(folder / "Dockerfile")) == str(folder)
    (folder / "server" / "Dockerfile").write_text("FROM x\n")
    with pytest.raises(ConfigError, match="is not what the folder"):
        ModalProvider.image_from_dockerfile(str(folder / "server" / "Dockerfile"))
    (folder / "Dockerfile").unlink()
    assert ModalProvider.image_from_dockerfile(str(folder / "server" / "Dockerfile")) == str(folder)
    assert ModalProvider.image_from_dockerfile(str(folder / "server" / "Dockerfile"), str(folder)) == str(folder)
    with pytest.raises(ConfigError, match="is not what the folder"):
        ModalProvider.image_from_dockerfile(str(tmp_path / "Dockerfile"))
