"""``openenv build`` on a real daemon."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import docker
import docker.errors
import pytest

from openenv_sandbox.authoring.scaffold import scaffold
from openenv_sandbox.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.docker


@pytest.fixture
def folder(tmp_path: Path, base_image: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENENV_BASE_IMAGE", base_image)
    return scaffold("verb_env", tmp_path)


@pytest.fixture(autouse=True)
def clean(engine: docker.DockerClient) -> Iterator[None]:
    yield
    names = [tag for image in engine.images.list() for tag in image.tags if "verb-env" in tag]
    for name in names:
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.images.remove(name, force=True)


def test_an_image_with_the_names_asked_for(
    folder: Path, engine: docker.DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names are printed and there; without any it is openenv-NAME:latest; our own openenv is inside.

    Mutation: print the names without giving them
    """
    assert run(["build", str(folder)]) == 0
    assert capsys.readouterr().out == "openenv-verb-env:latest\n"
    assert run(["build", str(folder), "-t", "me/verb-env:1", "-t", "verb-env"]) == 0
    assert capsys.readouterr().out == "me/verb-env:1\nverb-env\n"
    ids = {engine.images.get(name).id for name in ("openenv-verb-env", "me/verb-env:1", "verb-env:latest")}
    assert len(ids) == 1
    code = "import openenv_sandbox.server, importlib.metadata as m; print(m.version('openenv'))"
    said = engine.containers.run("verb-env:latest", ["python3", "-c", code], remove=True)
    assert said.decode().startswith("0.11")


def test_what_goes_wrong_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is none, a step that fails, a folder that is no environment."""
    assert run(["build", str(folder), "-t", "NOT/ok:1"]) == 1
    assert "is no name for an image" in capsys.readouterr().err
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "RUN echo the-last-words && exit 3\n")
    assert run(["build", str(folder)]) == 1
    assert "the-last-words" in capsys.readouterr().err
    assert run(["build", str(folder.parent)]) == 2
    assert "openenv.yaml" in capsys.readouterr().err
