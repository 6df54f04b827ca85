"""From a folder to an image: by either builder, with the running openenv inside, and failing in sentences."""

from __future__ import annotations

import asyncio
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import _builders, _dockerhost, image
from openenv_sandbox.build import LABEL, build_folder
from openenv_sandbox.errors import BuildError, ImageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import docker

    from openenv_sandbox.build import Built

    Build = Callable[..., Awaitable[Built]]

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

VERSION = "import openenv_sandbox as o; print(o.__version__)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "build_env"
    path.mkdir()
    (path / "openenv.yaml").write_text(f"name: build_env_{os.getpid()}\n")
    (path / ".dockerignore").write_text("*.secret\n")
    (path / "hidden.secret").write_text("s3kret-canary")
    return path


@pytest.fixture
async def build(folder: Path, base_image: str, tmp_path: Path, engine: docker.DockerClient) -> AsyncIterator[Build]:
    """Build ``folder`` with a Dockerfile; what was built is removed."""
    built: list[Built] = []

    async def run(text: str, **fields: Any) -> Built:
        (folder / "Dockerfile").write_text(text)
        found = await asyncio.to_thread(image.parse, folder)
        lines = fields.pop("lines", [])
        keywords = {"base_image": base_image, "cache_dir": tmp_path / "wheels", **fields}
        built.append(await build_folder(found, host=_dockerhost.resolve(), on_log=lines.append, **keywords))
        return built[-1]

    yield run
    for tag in {done.tag for done in built}:
        await asyncio.to_thread(engine.images.remove, tag, force=True)


@pytest.fixture(params=["buildkit", "classic"])
def builder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "classic":
        monkeypatch.setattr(_builders, "find_buildkit", lambda: None)
    elif _builders.find_buildkit() is None:
        pytest.skip("no docker command here has BuildKit")
    return str(request.param)


def inside(engine: docker.DockerClient, built: Built, *argv: str) -> str:
    return str(engine.containers.run(built.tag, list(argv), remove=True).decode().strip())


async def test_both_builders(build: Build, builder: str, engine: docker.DockerClient) -> None:
    """The running openenv is inside, the author's user and command stay, ignored files stay out."""
    import openenv_sandbox

    lines: list[str] = []
    text = (
        'FROM whatever/base:1\nCOPY . /app/env\nENV A="b c"\nUSER 65534:65534\nWORKDIR /app/env\nCMD ["sleep", "9"]\n'
    )
    built = await build(text, lines=lines)
    assert lines[0].startswith("building ")
    assert any("installing openenv-" in line for line in lines)
    assert (built.config.cmd, built.config.user, built.config.env["A"]) == (("sleep", "9"), "65534:65534", "b c")
    script = f"id -u; ls; ls /tmp; python3 -c '{VERSION}'"
    said = (await asyncio.to_thread(inside, engine, built, "sh", "-c", script)).split()
    assert said == ["65534", "Dockerfile", "openenv.yaml", openenv_sandbox.__version__]
    found = await asyncio.to_thread(engine.images.get, built.tag)
    assert found.labels[LABEL].startswith("build_env")
    assert "s3kret-canary" not in str([found.attrs, found.history()])
    assert await image.resolve_config(image.parse(built.tag)) == built.config
    again: list[str] = []
    assert (await build(text, lines=again)).id == built.id
    assert again == [f"{built.tag} is there already"]


async def test_an_older_distribution_of_the_same_names_is_removed(
    build: Build, folder: Path, engine: docker.DockerClient
) -> None:
    """The Python that the command uses gets ours, and ``openenv-core`` no longer lies over it."""
    info = "openenv_core-0.2.3.dist-info"
    with zipfile.ZipFile(folder / "openenv_core-0.2.3-py3-none-any.whl", "w") as archive:
        archive.writestr("openenv_sandbox/old_only.py", "")
        archive.writestr("openenv_sandbox/__init__.py", "__version__ = 'old'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: openenv-core\nVersion: 0.2.3\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        names = [*archive.namelist(), f"{info}/RECORD"]
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    text = (
        "FROM x\nCOPY . /src\nRUN python3 -m venv --without-pip --system-site-packages /opt/venv && "
        "python3 -m pip --python /opt/venv/bin/python install --no-index /src/openenv_core-0.2.3-py3-none-any.whl\n"
        'CMD ["/opt/venv/bin/python", "-m", "http.server"]\n'
    )
    built = await build(text)
    script = (
        "import openenv_sandbox as o, os; print(o.__version__, os.path.dirname(o.__file__), os.listdir(o.__path__[0]))"
    )
    said = await asyncio.to_thread(inside, engine, built, "/opt/venv/bin/python", "-c", script)
    assert not said.startswith("old")
    assert "/opt/venv/" in said
    assert "old_only.py" not in said
    kept = await build(text, keep_openenv=True)
    said = await asyncio.to_thread(inside, engine, kept, "/opt/venv/bin/python", "-c", VERSION)
    assert said == "old"
    assert kept.tag != built.tag


async def test_buildkit_is_used_where_it_is_and_missed_in_words(
    build: Build, engine: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``RUN --mount`` builds with BuildKit; without one it is refused before the build, naming the package."""
    text = "FROM x\nRUN --mount=type=cache,target=/c touch /made\n"
    if await asyncio.to_thread(_builders.find_buildkit) is not None:
        built = await build(text)
        assert await asyncio.to_thread(inside, engine, built, "ls", "/made") == "/made"
    monkeypatch.setattr(_builders, "find_buildkit", lambda: None)
    lines: list[str] = []
    with pytest.raises(BuildError, match=r"needs BuildKit \(line 2: RUN --mount\)") as caught:
        await build(text + "RUN true\n", lines=lines)
    assert "docker-buildx" in str(caught.value.hint)
    assert lines == []


async def test_a_failing_build_shows_the_end_of_its_log(build: Build, builder: str) -> None:
    """Scenario: H04
    Mutation: only the exit code is kept
    """
    lines: list[str] = []
    with pytest.raises(BuildError) as caught:
        await build("FROM x\nRUN echo the last words; exit 3\n", lines=lines)
    assert "the last words" in caught.value.log
    assert "the last words" in str(caught.value)
    assert any("the last words" in line for line in lines)


async def test_a_folder_without_dockerfile(folder: Path, base_image: str) -> None:
    found = await asyncio.to_thread(image.parse, folder)
    with pytest.raises(ImageError, match="has no Dockerfile") as caught:
        await build_folder(found, host=_dockerhost.resolve(), on_log=lambda line: None, base_image=base_image)
    assert "local" in str(caught.value.hint)


async def test_cancelling_ends_the_builder(build: Build, builder: str, engine: docker.DockerClient) -> None:
    """The builder's process and the container it runs are gone, and nothing is tagged."""
    begun = asyncio.Event()

    class Lines(list[str]):
        def append(self, line: str) -> None:
            if "now sleeping" in line:
                begun.set()

    text = "FROM x\nRUN echo now; echo now sleeping; sleep 987654\n"
    task = asyncio.ensure_future(build(text, lines=Lines()))
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    def sleeping() -> bool:
        return any(
            b"sleep\x00987654" in cmdline.read_bytes()
            for cmdline in Path("/proc").glob("[0-9]*/cmdline")
            if os.access(cmdline, os.R_OK) and cmdline.parent.exists()
        )

    for _ in range(300):
        if not await asyncio.to_thread(sleeping):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the build goes on")


def test_which_docker_has_buildkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every docker on PATH is asked, in order; the first that can is taken."""

    def fake(name: str, version: str, buildx: bool) -> Path:
        path = tmp_path / name / "docker"
        path.parent.mkdir()
        code = 'echo "github.com/docker/buildx 0.12"' if buildx else "exit 1"
        path.write_text(f'#!/bin/sh\ncase "$1" in buildx) {code};; version) echo {version}; exit 1;; esac\n')
        path.chmod(0o755)
        return path

    new, old, plugin = fake("new", "28.2.2", False), fake("old", "20.10.24", False), fake("plugin", "27.0.1", True)

    def found(*paths: Path) -> _builders.BuildKit | None:
        folders = [str(path.parent) for path in paths]
        monkeypatch.setenv("PATH", os.pathsep.join(folders))
        return _builders.find_buildkit()

    assert found(new) is None
    assert found(new, old) == _builders.BuildKit(str(old), "builtin")
    assert found(new, plugin, old) == _builders.BuildKit(str(plugin), "buildx")
    assert found() is None


@pytest.mark.full
def test_the_base_image_is_made_once(base_image: str) -> None:
    """A second run of the recipe only looks."""
    import sys

    script = Path(__file__).resolve().parents[2] / "scripts" / "base_image.py"
    argv = [sys.executable, str(script), "--tag", base_image]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert "is up to date" in again.stdout
