"""Environment packages of the usual shapes run unmodified through the import names, server and client."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from tests.adapters.served import PACKAGES, served

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT = 60.0


def drive(code: str, url: str) -> str:
    """Run a script against a server as its author would: in a process of its own, with the package installed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, url],
        cwd=PACKAGES,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def get(url: str, body: Any = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"} if data else {})
    with urlopen(request, timeout=TIMEOUT) as answer:
        return answer.status, answer.read().decode()


LANTERN = """
import asyncio, sys
from lantern_env import LanternAction, LanternEnv
with LanternEnv(base_url=sys.argv[1]).sync() as env:
    result = env.reset(seed=3)
    assert result.observation.brightness == 0 and not result.done, result
    result = env.step(LanternAction(lit=True))
    assert (result.observation.brightness, result.reward, result.done) == (9, 0.5, False), result
    assert result.observation.metadata == {"steps": 1} and result.metadata == {"lit": True}
    result = env.step(LanternAction(lit=False))
    assert result.done and result.observation.done
    state = env.state()
    assert (state.episode_id, state.step_count, state.history) == ("night", 2, [True, False]), state
async def main():
    async with LanternEnv(base_url=sys.argv[1]) as env:
        await env.reset()
        return (await env.step(LanternAction(lit=True))).observation.brightness
assert asyncio.run(main()) == 9
"""


@pytest.mark.parametrize(
    ("app", "folder"),
    [("server.app:app", PACKAGES / "lantern_env"), ("lantern_env.server.app:app", PACKAGES)],
    ids=["flat imports", "installed package"],
)
def test_no_constructor_bare_reset_and_a_factory_chosen_by_annotation(app: str, folder: Path) -> None:
    with served(app, folder) as url:
        drive(LANTERN, url)
        # A subclass of the declared observation keeps its own fields.
        first = json.loads(get(f"{url}/step", {"action": {"lit": True}})[1])
        assert "ashes" not in first["observation"]
        from openenv.core.generic_client import GenericEnvClient

        with GenericEnvClient(url).sync() as env:
            env.reset()
            env.step({"lit": True})
            assert env.step({"lit": True}).observation["ashes"] == 1


@pytest.mark.full
def test_a_lock_that_pins_the_older_distribution() -> None:
    """What runs is this openenv, whatever the folder's lock says.

    Mutation: install what the lock pins
    """
    from openenv.core.containers.runtime import UVProvider
    from openenv.core.generic_client import GenericEnvClient

    from openenv_sandbox import __version__
    from openenv_sandbox.client import addresses

    assert 'name = "openenv-core"' in (PACKAGES / "lantern_env" / "uv.lock").read_text()
    with UVProvider(project_path=str(PACKAGES / "lantern_env")) as provider:
        url = provider.start()
        found = addresses.find(url)
        assert found is not None
        request = Request(f"{url}/metadata", headers={"authorization": f"Bearer {found.token}"})
        with urlopen(request, timeout=TIMEOUT) as answer:
            assert json.loads(answer.read())["openenv_version"] == __version__
        with GenericEnvClient(base_url=url).sync() as env:
            assert env.reset().observation["brightness"] == 0


NOTES = """
import sys
from notes_env import NoteAction, NotesEnv
env = NotesEnv(base_url=sys.argv[1]).sync()
try:
    env.connect()
    try:
        env.state()
    except RuntimeError as error:
        assert "call reset first" in str(error)
    else:
        raise AssertionError("a state before the first reset")
    result = env.reset(author="ada", seed=7)
    assert result.observation.author == "ada" and result.observation.metadata == {"seed": 7}
    assert env.step(NoteAction(text="0123456789")).reward == 1.0
    assert env.step(NoteAction(text="no")).reward == 0.0
    result = env.write_twice("01234")
    assert result.reward == 0.25 and result.observation.notes[1:] == ["no", "01234", "01234"], result
    assert env.count() == 4
    assert env.reset().observation.author == "nobody"
finally:
    env.close()
"""


def test_options_by_name_a_replaced_page_and_coroutines_of_the_client() -> None:
    with served("notes_env.server.app:app", PACKAGES, ENABLE_WEB_INTERFACE="true") as url:
        drive(NOTES, url)
        assert get(f"{url}/web") == (200, "<h1>notes: Takes notes</h1>")
        assert json.loads(get(f"{url}/list_environments")[1]) == ["notes_env"]
        splits = json.loads(get(f"{url}/notes_env/splits")[1])
        assert [split["name"] for split in splits] == ["train", "held_out"]
        assert json.loads(get(f"{url}/notes_env/num_tasks", {"split": "train"})[1]) == {"num_tasks": 2}
        metadata = json.loads(get(f"{url}/metadata")[1])
        assert (metadata["name"], metadata["version"]) == ("notes", None)
        assert metadata["openenv_version"]


ROLLS = """
import sys
from rolls_env import CallToolAction, ListToolsAction, RollsEnv
with RollsEnv(base_url=sys.argv[1]).sync() as env:
    result = env.reset()
    assert result.observation.metadata == {"message": "ready"} and result.reward == 0.0
    assert {"add", "describe"} <= {tool.name for tool in env.list_tools()}
    assert env.call_tool("add", a=20) == 22
    assert env.call_tool("describe", text="ab") == {"text": "ab", "length": 2}
    step = env.step(CallToolAction(tool_name="add", arguments={"a": 1}))
    assert step.observation.result["data"] == 3 and step.reward is None, step
    listed = env.step(ListToolsAction())
    assert {"add", "describe"} <= {tool.name for tool in listed.observation.tools}
    assert env.state().step_count == 2
    try:
        env.call_tool("boom")
    except RuntimeError as error:
        assert "it broke" in str(error)
    else:
        raise AssertionError("a failing tool looked successful")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("app", "folder"),
    [("server.app:app", PACKAGES / "rolls_env"), ("rolls_env.server.app:app", PACKAGES)],
    ids=["flat imports", "installed package"],
)
def test_tools_of_a_fastmcp_server(app: str, folder: Path) -> None:
    pytest.importorskip("fastmcp", reason="FastMCP is not installed: pip install 'openenv[core]'")
    with served(app, folder) as url:
        drive(ROLLS, url)


@pytest.mark.full
@pytest.mark.parametrize(("mode", "tool"), [("production", "look"), ("simulation", "peek")])
def test_the_mode_a_server_runs_in_is_that_of_its_tools(mode: str, tool: str) -> None:
    pytest.importorskip("fastmcp", reason="FastMCP is not installed: pip install 'openenv[core]'")
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    with served("rolls_env.server.app:app", PACKAGES, OPENENV_MODE=mode) as url:
        listed = {item["name"] for item in json.loads(get(f"{url}/mcp", request)[1])["result"]["tools"]}
        assert listed & {"look", "peek"} == {tool}
        assert json.loads(get(f"{url}/mcp", call)[1])["result"]["data"] == mode
