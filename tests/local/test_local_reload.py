"""A server that follows its sources, for authors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers import _local_reload as reloads

from openenv_sandbox import launch
from openenv_sandbox.errors import CapabilityError, OpenEnvError, ServerExited, SessionLost
from openenv_sandbox.image import parse
from tests.local.sandboxes import BOTH

if TYPE_CHECKING:
    from openenv_sandbox.client.generic import GenericEnvClient

pytestmark = pytest.mark.anyio

ECHO = Path(__file__).parents[2] / "envs" / "echo_env"
HI: dict[str, Any] = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """echo_env of an author."""
    made = tmp_path / "my_echo"
    shutil.copytree(ECHO, made, ignore=shutil.ignore_patterns("__pycache__"))
    return made


async def until_lost(env: GenericEnvClient) -> SessionLost:
    """Step until the episode has ended."""
    while True:
        try:
            await env.step(HI)
        except SessionLost as error:
            return error


@pytest.mark.parametrize("isolation", BOTH)
async def test_a_change_starts_the_server_anew(folder: Path, isolation: str) -> None:
    """An open episode ends with SessionLost, the next reset is answered by the new sources, in the same sandbox.

    Mutation: `Reloader.run` takes what it saw first for what is there
    """
    options = {"isolation": isolation}
    async with launch(folder, provider="local", options=options, reload=True) as env:
        ref = env.sandbox.ref
        await env.reset()
        assert (await env.step(HI)).reward == pytest.approx(0.2)
        source = _source(folder)
        text = source.read_text()
        source.write_text(text.replace("/ 10", "/ 2"))
        await until_lost(env)
        await env.reset()
        assert (await env.step(HI)).reward == pytest.approx(1.0)
        assert env.sandbox.ref == ref
        assert b"changed: the server starts anew" in await env.sandbox.logs()


async def test_a_broken_change_is_no_end(folder: Path) -> None:
    """While the source does not compile nobody waits for an answer; when it does, the next reset works.

    Mutation: `Reloader.run` ends with every server that ends
    """
    async with launch(folder, provider="local", reload=True) as env:
        await env.reset()
        source = _source(folder)
        text = source.read_text()
        source.write_text("this is no Python\n")
        await until_lost(env)
        with pytest.raises(OpenEnvError):
            await env.reset()
        source.write_text(text + "\n")
        while True:
            try:
                await env.reset()
                break
            except OpenEnvError:
                continue
        assert "hi" in str((await env.step(HI)).observation)
        assert b"SyntaxError" in await env.sandbox.logs()


async def test_a_server_that_never_starts_is_told_as_ever(folder: Path) -> None:
    """The first start is no change: its end ends the launch, with its words.

    Mutation: `Reloader.run` waits for a change when the first server ends
    """
    _source(folder).write_text("raise RuntimeError('dying words')\n")
    with pytest.raises(ServerExited, match="dying words"):
        await launch(folder, provider="local", reload=True)


async def test_elsewhere_it_is_refused(folder: Path) -> None:
    with pytest.raises(CapabilityError, match="reload") as caught:
        await launch(str(folder), provider="docker", reload=True)
    assert "local" in caught.value.alternatives
    assert parse(folder).kind == "folder"


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    """Sources anywhere below; not what a server may write, nor what tools keep.

    Mutation: `look` looks at every file
    """
    before = reloads.look(str(tmp_path))
    for name in ("data.json", "log.txt", "a.pyc", "__pycache__/b.py", ".git/c.py", "node_modules/d.js", "db.sqlite"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    assert reloads.look(str(tmp_path)) == before
    source = tmp_path / "server" / "app.py"
    source.parent.mkdir()
    source.write_text("1")
    came = reloads.look(str(tmp_path))
    assert reloads.changed(before, came) == [str(source)]
    os.utime(source, ns=(1, 1))
    assert reloads.changed(came, reloads.look(str(tmp_path))) == [str(source)]
    source.unlink()
    assert reloads.changed(came, reloads.look(str(tmp_path))) == [str(source)]


@pytest.mark.parametrize("groups", [True, False])
def test_how_a_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: bool) -> None:
    """In a group of its own with what it made, where that can be told apart; else in this one, which others end.

    Mutation: servers always get a session of their own
    """
    monkeypatch.setattr(reloads, "GROUPS", groups)
    reloader = reloads.Reloader(str(tmp_path), -1, ["sleep", "600"])
    pid = reloader.process.pid
    assert (os.getpgid(pid) == os.getpgid(0)) is not groups
    reloader.end()
    assert reloader.process.returncode is not None
    reloader.end()


def _source(folder: Path) -> Path:
    return next(path for path in folder.glob("server/*.py") if "reward" in path.read_text())
