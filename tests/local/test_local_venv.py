"""Environments of their own, where dependencies are not at hand."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers import _local_plan as plan
from openenv_providers import _local_venv as venv
from openenv_providers.local import LocalProvider

import openenv_sandbox
from openenv_sandbox import folder
from openenv_sandbox.errors import BuildError, ImageError
from openenv_sandbox.image import parse
from openenv_sandbox.spec import SandboxSpec
from tests.local.sandboxes import BOTH, Maker, get, none_left, run

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio
ECHO = Path(__file__).parents[2] / "envs" / "echo_env"
APP = """
import json, openenv, openenv_sandbox, tiny_dependency
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    body = {"openenv": openenv.__file__, "version": openenv_sandbox.__version__, "dependency": tiny_dependency.VALUE}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
"""


def wheel(root: Path, name: str, files: dict[str, str], version: str = "1.0") -> Path:
    """A wheel of a few files."""
    info = f"{name}-{version}.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, *meta, f"{info}/RECORD"))
    path = root / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**files, **meta, f"{info}/RECORD": record}.items():
            archive.writestr(inside, text)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENENV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder that needs a distribution which is not here, and the older implementation under its other name."""
    one = wheel(tmp_path, "tiny_dependency", {"tiny_dependency.py": "VALUE = 'first'\n"})
    old = wheel(tmp_path, "openenv_core", {"openenv/__init__.py": "raise ImportError('the old one')\n"}, "0.2.1")
    root = tmp_path / "needy_env"
    (root / "server").mkdir(parents=True)
    (root / "openenv.yaml").write_text("name: needy_env\napp: server.app:app\n")
    (root / "pyproject.toml").write_text(
        '[project]\nname = "needy-env"\n'
        f'dependencies = ["tiny-dependency @ {one.as_uri()}", "openenv-core @ {old.as_uri()}", "openenv>=0.2"]\n'
        '[project.scripts]\nserver = "needy_env.server.app:main"\n'
    )
    (root / "server" / "app.py").write_text(APP)
    return root


@pytest.mark.full
@pytest.mark.parametrize("isolation", BOTH)
async def test_an_environment_of_its_own(make: Maker, environment: Path, cache: Path, tmp_path: Path) -> None:
    """Dependencies are installed, ours last and for the older one; a second start builds nothing; a change is seen.

    Mutation: our wheel goes in before the others, `openenv-core` stays, or `key` leaves pyproject.toml out
    """
    said = json.loads(await get(await make(environment)))
    assert said["openenv"].startswith(str(cache / "local"))
    assert (said["version"], said["dependency"]) == (openenv_sandbox.__version__, "first")
    built = venv.made()
    assert len(built) == 1
    stamp = (built[0] / venv.READY).stat().st_mtime_ns
    await make(environment)
    assert (venv.made(), (built[0] / venv.READY).stat().st_mtime_ns) == (built, stamp)
    two = wheel(tmp_path, "tiny_dependency", {"tiny_dependency.py": "VALUE = 'second'\n"}, "2.0")
    text = (environment / "pyproject.toml").read_text()
    (environment / "pyproject.toml").write_text(text.replace("tiny_dependency-1.0-py3-none-any.whl", two.name))
    assert json.loads(await get(await make(environment)))["dependency"] == "second"
    prepared = await make.provider.list_prepared()
    assert len(prepared) == 2
    for one in prepared:
        await make.provider.drop(one)
    assert await make.provider.list_prepared() == []


async def test_a_second_launch_makes_nothing(
    environment: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was made for a folder is used by later providers and processes, until what it depends on changes.

    Mutation: `Builder.build` does not look whether it is there
    """
    made: list[Path] = []

    def make(self: venv.Builder, place: Path) -> plan.Interpreter:
        made.append(place)
        place.mkdir()
        (place / venv.READY).write_text(json.dumps(asdict(plan.running())))
        return plan.running()

    monkeypatch.setattr(venv.Builder, "_make", make)
    monkeypatch.setattr(venv, "own_wheel", lambda place: wheel(tmp_path, "openenv", {}))
    lines: list[str] = []
    for number in range(3):
        provider = LocalProvider({"isolation": "none"})
        image = await asyncio.to_thread(parse, environment)
        await provider.prepare(SandboxSpec(image=str(environment)), image, on_log=lines.append)
        await provider.aclose()
        assert len(made) == 1, lines
        (environment / "server" / "app.py").write_text(f"{APP}\n# version {number}\n")
    assert lines == []
    text = (environment / "pyproject.toml").read_text()
    (environment / "pyproject.toml").write_text(f"{text}\n# another\n")
    image = await asyncio.to_thread(parse, environment)
    provider = LocalProvider({"isolation": "none"})
    await provider.prepare(SandboxSpec(image=str(environment)), image, on_log=lines.append)
    await provider.aclose()
    assert len(made) == 2


@pytest.mark.full
@pytest.mark.bwrap
async def test_our_server_answers_there(cache: Path) -> None:
    """An environment made from a named interpreter serves by the openenv that is running.

    Mutation: the wheel is not installed last
    """
    make = Maker("bwrap", python=sys.executable)
    sandbox = await make(ECHO)
    assert json.loads(await get(sandbox, "/metadata"))["openenv_version"] == openenv_sandbox.__version__
    executable = (await run(sandbox, "python -c 'import sys; print(sys.prefix)'"))[1]
    assert executable.startswith(str(cache))
    await make.close()


class Slow(venv.Builder):
    """Its steps are shell commands."""

    def _make(self, place: Path) -> plan.Interpreter:
        place.mkdir()
        (place / "half").touch()
        self._run(["/bin/sh", "-c", "echo building; " + STEP[0]])
        made = plan.Interpreter(sys.executable, (sys.prefix,), (sys.base_prefix,), "3.0.0")
        (place / venv.READY).write_text(json.dumps(vars(made)))
        return made


STEP = [""]


@pytest.fixture
def builder(environment: Path, cache: Path, tmp_path: Path) -> Callable[[], Slow]:
    ours = wheel(tmp_path, "openenv", {"openenv/__init__.py": ""})
    return lambda: Slow(folder.read(environment), plan.running(), ours, lambda line: None)


async def test_built_once_by_many(builder: Callable[[], Slow], tmp_path: Path) -> None:
    """Several at once build once, and all get the result.

    Mutation: `_locked` does not lock
    """
    STEP[0] = f"echo x >>{tmp_path}/count; sleep 0.3"
    made = await asyncio.gather(*(asyncio.to_thread(builder().build) for _ in range(4)))
    assert len(set(made)) == 1
    assert (tmp_path / "count").read_text() == "x\n"


async def test_a_failed_build_leaves_nothing(builder: Callable[[], Slow]) -> None:
    """The error has the end of the output; the next attempt starts afresh.

    Mutation: `build` leaves the folder
    """
    STEP[0] = "echo it went wrong >&2; exit 4"
    with pytest.raises(BuildError, match="installing") as caught:
        await asyncio.to_thread(builder().build)
    assert "it went wrong" in caught.value.log
    assert [p.name for p in venv.environments().iterdir() if p.is_dir()] == []
    STEP[0] = "true"
    assert (await asyncio.to_thread(builder().build)).version == "3.0.0"


async def test_a_cancelled_build_leaves_no_process(builder: Callable[[], Slow]) -> None:
    """Cancelling ends the package manager with its children, and leaves nothing.

    Mutation: `cancel` does nothing
    """
    STEP[0] = "sleep 65432 & sleep 65432"
    one = builder()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    one.on_log = lambda line: loop.call_soon_threadsafe(started.set)  # type: ignore[assignment]
    task = asyncio.ensure_future(asyncio.to_thread(one.build))
    await started.wait()
    one.cancel()
    with pytest.raises(BuildError, match="cancelled"):
        await task
    assert none_left("65432") == []
    assert [p.name for p in venv.environments().iterdir() if p.is_dir()] == []


def test_what_an_environment_depends_on(environment: Path, tmp_path: Path) -> None:
    """Declared dependencies, lock, interpreter and our own wheel; nothing else."""
    ours = wheel(tmp_path, "openenv", {})
    here = plan.running()
    keys = [venv.key(folder.read(environment), here, ours)]
    (environment / "server" / "app.py").write_text("# changed\n")
    assert venv.key(folder.read(environment), here, ours) == keys[0]
    (environment / "uv.lock").write_text("x")
    keys.append(venv.key(folder.read(environment), here, ours))
    other = plan.Interpreter(here.executable, here.prefixes, here.base, "3.99.1")
    keys.append(venv.key(folder.read(environment), other, ours))
    moved = tmp_path / "digest"
    moved.mkdir()
    keys.append(venv.key(folder.read(environment), here, Path(shutil.copy(ours, moved))))
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ((), ["-m venv PLACE"]),
        (("-m venv PLACE",), ["-m venv PLACE", "--version", "-m venv --without-pip PLACE"]),
        (("-m venv", "--version"), ["-m venv PLACE", "--version", "uv venv"]),
        (("-m venv", "uv"), ["-m venv PLACE", "--version", "-m venv --without-pip PLACE", "uv venv"]),
    ],
)
def test_ways_to_make_one(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...], expected: list[str]
) -> None:
    """With ensurepip, without, by uv; else one sentence that says what to install."""
    ran: list[str] = []
    place = tmp_path / "place"
    one = venv.Builder(folder.read(environment), plan.running(), tmp_path / "openenv.whl", lambda line: None)

    def pretend(argv: list[str], *, check: bool = True) -> bool:
        line = " ".join(argv).replace(str(place), "PLACE")
        ran.append(line)
        return not any(word in line for word in failing)

    monkeypatch.setattr(one, "_run", pretend)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    if failing == ("-m venv", "uv"):
        with pytest.raises(BuildError) as caught:
            one._create(place, "python")
        assert caught.value.hint == "apt-get install python3-venv, or install uv"
    else:
        one._create(place, "python")
    assert len(ran) == len(expected)
    assert all(part in line for part, line in zip(expected, ran, strict=True))


def test_which_interpreter(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running one when it fits, else one that does, else an error that says what is there."""
    project = environment / "pyproject.toml"
    text = project.read_text()
    assert plan.choose(folder.read(environment), None) == plan.running()
    project.write_text(text.replace("[project]\n", '[project]\nrequires-python = ">=3.98,<4"\n'))
    asked: list[str] = []

    def pretend(command: str, timeout: float = 20) -> plan.Interpreter | None:
        asked.append(command)
        return (
            plan.Interpreter(f"/usr/bin/{command}", ("/usr",), ("/usr",), "3.98.1") if command == "python3.13" else None
        )

    monkeypatch.setattr(plan, "ask", pretend)
    assert plan.choose(folder.read(environment), None).executable == "/usr/bin/python3.13"
    with pytest.raises(ImageError, match=r"needs Python >=3.98,<4, found none") as caught:
        plan.choose(folder.read(environment), "python3.7")
    assert "python" in (caught.value.hint or "")
    assert "needs Python" in plan.at_hand(folder.read(environment), plan.running())


def test_an_interpreter_tells_about_itself() -> None:
    found: Any = plan.ask(sys.executable)
    assert (found.executable, found.version) == (sys.executable, plan.running().version)
    assert plan.ask("no-such-python") is None
    assert plan.ask("true") is None
