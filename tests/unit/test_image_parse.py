"""The grammar of images: every form, and an error with the nearest fit for everything else."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from openenv_sandbox import image
from openenv_sandbox.errors import ImageError

DOCKERFILE = 'FROM python:3.11-slim\nCMD ["uvicorn", "server.app:app"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_env"
    path.mkdir()
    (path / "openenv.yaml").write_text("name: my_env\napp: server.app:app\nport: 8001\n")
    (path / "Dockerfile").write_text(DOCKERFILE)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "ghcr.io/me/env:1",
        "echo-env",
        "echo-env:latest",
        "me/echo_env",
        "localhost:5000/a/b:tag",
        "127.0.0.1:5000/a",
        f"ghcr.io/me/env@sha256:{'a' * 64}",
        f"ghcr.io/me/env:1@sha256:{'a' * 64}",
        f"sha256:{'a' * 64}",
    ],
)
def test_refs(text: str) -> None:
    found = image.parse(text)
    assert (found.kind, found.name) == ("ref", text)
    assert (found.digest is None) == ("sha256" not in text)


@pytest.mark.parametrize("kind", ["template", "snapshot"])
def test_what_a_backend_holds(kind: str) -> None:
    found = image.parse(f"{kind}:abc/d:1")
    assert (found.kind, found.name) == (kind, "abc/d:1")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("tempalte:x", "template:x"),
        ("template:", "template:ID"),
        ("snapsho:x", "snapshot:x"),
        ("Ghcr.io/Me/Env", "ghcr.io/me/env"),
        ("https://github.com/a/b", "git+https://github.com/a/b"),
        ("huggingface://a/b", "hf://a/b"),
        ("docker://a/b:1", "a/b:1"),
        (" me/env", "me/env"),
        ("my env", "./my_env"),
        ("what ever", "leading ./"),
        ("", "leading ./"),
        ("./my_emv", "my_env"),
        ("my_emv/", "./my_env"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_near_misses_name_the_nearest_fit(text: str, hint: str) -> None:
    with pytest.raises(ImageError) as caught:
        image.parse(text)
    assert hint in (caught.value.hint or "")


def test_a_name_that_is_both_a_folder_and_a_ref_is_refused(folder: Path) -> None:
    with pytest.raises(ImageError, match="could be the folder") as caught:
        image.parse("my_env")
    assert "./my_env" in str(caught.value)
    assert "docker.io/my_env" in str(caught.value)


def test_a_folder_carries_its_start(folder: Path) -> None:
    for text in ("./my_env", str(folder), folder, Path("my_env")):
        found = image.parse(text)
        assert (found.kind, found.name, found.path) == ("folder", "my_env", str(folder))
        assert found.config is not None
        assert found.config.argv == ("uvicorn", "server.app:app")
    (folder / "Dockerfile").unlink()
    bare = image.parse("./my_env")
    assert bare.dockerfile is None
    assert bare.config is not None
    assert bare.config.argv[-3:] == ("0.0.0.0", "--port", "8001")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "not a mapping"),
        ("name: [", "cannot be read"),
        ("port: 99999", "port"),
        ("port: yes", "port"),
        ("app: nonsense", "module:attribute"),
        ("name: ''", "name"),
    ],
)
def test_a_malformed_manifest_names_the_field(folder: Path, text: str, message: str) -> None:
    (folder / "openenv.yaml").write_text(text)
    with pytest.raises(ImageError, match=message):
        image.parse(folder)


def test_unknown_manifest_fields_are_kept(folder: Path) -> None:
    (folder / "openenv.yaml").write_text("name: x\nvalidation: {reward: 1}\nspec_version: 1\n")
    found = image.manifest(folder)
    assert (found.name, found.app, found.port) == ("x", None, 8000)
    assert found.raw["validation"] == {"reward": 1}


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"no openenv\.yaml"):
        image.parse(tmp_path)


def test_the_digest_is_of_content(folder: Path) -> None:
    first = image.parse(folder).digest
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("1")
    (folder / ".dockerignore").write_text("notes\n")
    second = image.parse(folder).digest
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("1")
    assert image.parse(folder).digest == second != first
    (folder / "models.py").write_text("1")
    third = image.parse(folder).digest
    (folder / "models.py").chmod(0o755)
    assert len({second, third, image.parse(folder).digest}) == 3


def make_client(path: Path, name: str) -> type:
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    return type("MyEnv", (), {"__module__": name})


def test_a_client_knows_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "src" / "my_env"
    package.mkdir(parents=True)
    for path, name in ((folder / "client.py", "my_env.client"), (package / "client.py", "my_env.sub.client")):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        assert image.for_client(make_client(path, name)).path == str(folder)


def test_an_installed_client_never_looks_above_site_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "site-packages" / "other"
    package.mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "other.client", types.ModuleType("other.client"))
    with pytest.raises(ImageError, match=r"no openenv\.yaml") as caught:
        image.for_client(make_client(package / "client.py", "other.client"))
    assert "launch(" in (caught.value.hint or "")


def test_a_client_of_no_package() -> None:
    from openenv_sandbox.errors import OpenEnvError

    with pytest.raises(ImageError, match="belongs to no environment package"):
        image.for_client(OpenEnvError)


@pytest.mark.anyio
async def test_nothing_says_what_to_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "openenv.yaml").write_text("name: x\n")
    (folder / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(ImageError) as caught:
        await image.resolve_config(image.parse(folder))
    assert "command=" in (caught.value.hint or "")
    assert await image.resolve_config(image.parse("template:x")) is None
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/no.sock")
    with pytest.raises(ImageError, match=r"docker: .*registry: ") as caught:
        await image.resolve_config(image.parse("127.0.0.1:1/a/b:1"))
    assert "command=" in (caught.value.hint or "")
