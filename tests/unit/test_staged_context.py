"""An environment folder as a build context for builders that are not a docker daemon's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.errors import ImageError
from openenv_sandbox.image import parse
from openenv_sandbox.staging import INSTALL_DIR, staged

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

_DOCKERFILE = "FROM python:3.11-slim\nCOPY . /app\nUSER worker\nCMD uvicorn app:app --port 8000"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPENENV_BASE_IMAGE", raising=False)
    root = tmp_path / "my_env"
    root.mkdir()
    (root / "openenv.yaml").write_text("name: my_env\nport: 8000\n")
    (root / "Dockerfile").write_text(_DOCKERFILE)
    (root / "app.py").write_text("app = None\n")
    (root / ".dockerignore").write_text("*.log\n")
    (root / "noise.log").write_text("noise")
    return root


async def test_the_context_holds_the_folder_and_the_running_openenv(folder: Path) -> None:
    async with staged(parse(str(folder))) as made:
        assert (made.folder / "app.py").is_file()
        assert not (made.folder / "noise.log").exists()
        [wheel] = (made.folder / INSTALL_DIR).glob("openenv-*.whl")
        lines = made.dockerfile.read_text().splitlines()
        assert lines[4] == "USER root"
        assert lines[5].startswith(f"COPY {INSTALL_DIR}/install.sh {INSTALL_DIR}/{wheel.name} ")
        assert lines[6].startswith('RUN ["/bin/sh", ')
        assert lines[7:] == ["USER worker"]
        kept = made.folder
    assert not kept.exists()


async def test_kept_openenv_and_another_base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(parse(str(folder))) as made:
        first = made.digest
    monkeypatch.setenv("OPENENV_BASE_IMAGE", "mirror/python:1")
    async with staged(parse(str(folder)), keep_openenv=True) as made:
        assert made.dockerfile.read_text().splitlines() == ["FROM mirror/python:1", *_DOCKERFILE.splitlines()[1:]]
        assert not (made.folder / INSTALL_DIR).exists()
        assert made.digest != first


async def test_the_digest_follows_the_content(folder: Path) -> None:
    digests = []
    for text in ("app = 1\n", "app = 2\n", "app = 1\n"):
        (folder / "app.py").write_text(text)
        async with staged(parse(str(folder))) as made:
            digests.append(made.digest)
    assert digests[0] == digests[2] != digests[1]


async def test_a_folder_that_has_our_name(folder: Path) -> None:
    """What the author put where openenv is added is neither built in nor overwritten.

    Mutation: the folder is taken as it is
    """
    (folder / INSTALL_DIR).mkdir()
    (folder / INSTALL_DIR / "install.sh").write_text("exit 1\n")
    with pytest.raises(ImageError, match="dockerignore"):
        async with staged(parse(str(folder))):
            pass


async def test_no_dockerfile(folder: Path) -> None:
    (folder / "Dockerfile").unlink()
    with pytest.raises(ImageError, match="no Dockerfile"):
        async with staged(parse(str(folder))):
            pass
