"""The wheel as a user gets it: in fresh environments, used from another folder."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"openenv_sandbox", "openenv_providers", "openenv_adapters", "openenv", "openenv_core"}
pytestmark = pytest.mark.full

USE = """
import asyncio, os, openenv, openenv_core, openenv_sandbox, openenv_providers, sys
for module in (openenv, openenv_sandbox, openenv_providers):
    assert "site-packages" in module.__file__, module.__file__
from openenv_sandbox import launch, registry
try:
    registry.get("docker")()
except ImportError as error:
    assert "pip install 'openenv[docker]'" in str(error), error
else:
    raise AssertionError("docker was constructed without its SDK")
async def main():
    async with launch(sys.argv[1], provider="local") as env:
        await env.reset()
        result = await env.step({"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}})
        assert result.observation["result"]["data"] == "hi"
asyncio.run(main())
print("used")
"""


def run(*argv: object, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the build backend makes."""
    folder = tmp_path_factory.mktemp("wheel")
    run("sh", ROOT / "scripts/venv.sh", folder / "venv", cwd=folder)
    run(folder / "venv/bin/python", "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", folder, ROOT, cwd=folder)
    return next(folder.glob("openenv-*.whl"))


@pytest.fixture(scope="session", params=["3.10", "3.13"])
def fresh(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of a fresh environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp(f"fresh{request.param}")
    run("sh", ROOT / "scripts/venv.sh", folder / "venv", request.param, cwd=folder)
    python = folder / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return python


def test_it_ships_the_five_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    page = ROOT / "openenv_sandbox/server/web/static"
    assert {str(path.relative_to(ROOT)) for path in page.iterdir()} <= set(names)


def test_a_bare_install_is_small(fresh: Path, tmp_path: Path) -> None:
    """Counted without pip, setuptools and openenv; bytes of site-packages, compiled files included.

    Scenario: N01
    Mutation: add fastmcp or gradio to the dependencies
    """
    listing = json.loads(run(fresh, "-m", "pip", "list", "--format=json", cwd=tmp_path))
    names = {item["name"].lower() for item in listing} - {"pip", "setuptools", "openenv"}
    site = next((fresh.parents[1] / "lib").glob("python*/site-packages"))
    size = sum(
        path.lstat().st_size
        for path in site.rglob("*")
        if path.is_file() and not path.relative_to(site).parts[0].startswith(("pip", "setuptools", "_distutils"))
    )
    assert len(names) <= 30, sorted(names)
    assert size <= 60e6


def test_it_works_from_another_folder(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    assert "used" in run(fresh, "-W", "ignore::DeprecationWarning", "use.py", ROOT / "envs/echo_env", cwd=tmp_path)


def test_every_extra_installs(wheel: Path, tmp_path: Path) -> None:
    run("sh", ROOT / "scripts/venv.sh", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[all]", cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    out = run(python, "-m", "openenv_sandbox.cli", "providers", "--json", cwd=tmp_path)
    assert all(info["installed"] for info in json.loads(out))
