"""The echo environment: its client on its server, both faces, and every way it is started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from echo_env import CallToolAction, EchoEnv, EchoObservation, ListToolsAction
from echo_env.server.echo_environment import EchoEnvironment

from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import CapacityError, ExecutionError
from openenv_sandbox.image import for_client
from tests.wire.serving import DEADLINE, ROOT, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = CallToolAction(tool_name="echo_message", arguments={"message": "Hello, World!"})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve("echo_env.server.app:app") as address:
        yield f"http://{address}"


@pytest.mark.anyio
async def test_async_face(url: str) -> None:
    """Greeting, echo and a numeric reward; the raw dict stays at hand.

    Mutation: leave the result a dict
    """
    async with EchoEnv(base_url=url) as client:
        result = await client.reset(seed=1, episode_id="mine")
        assert result.observation.echoed_message == "Echo environment ready!"
        assert result.observation.metadata["status"] == "ready"
        result = await client.step(HELLO)
        assert result.observation.result == "Hello, World!"
        assert (result.observation.raw_result or {})["structured_content"] == {"result": "Hello, World!"}
        assert result.reward == result.observation.reward == 1.3
        assert not result.done
        state = await client.state()
        assert (state.episode_id, state.step_count) == ("mine", 1)


def test_sync_face(url: str) -> None:
    """The same without a loop, tools by name included, over one session.

    Mutation: open a second session for call_tool
    """
    with EchoEnv(base_url=url).sync() as client:
        assert client.reset().observation.echoed_message == "Echo environment ready!"
        result = client.step(HELLO)
        assert (result.observation.result, result.reward) == ("Hello, World!", 1.3)
        assert client.call_tool("echo_message", message="hi") == "hi"
        assert [tool.name for tool in client.list_tools()] == ["echo_message", "echo_with_length"]
        assert client.state().step_count == 3


@pytest.mark.anyio
async def test_tools_by_name(url: str) -> None:
    """Values come back with their type; a failing call is an error that says why.

    Mutation: return None for a failed call
    """
    async with EchoEnv(base_url=url) as client:
        await client.reset()
        assert [tool.name for tool in await client.list_tools()] == ["echo_message", "echo_with_length"]
        assert await client.call_tool("echo_with_length", message="four") == {"message": "four", "length": 4}
        with pytest.raises(ExecutionError, match="Missing required argument"):
            await client.call_tool("echo_message")
        with pytest.raises(ExecutionError, match="Unknown tool: 'nope'"):
            await client.call_tool("nope")
        listed = await client.step(ListToolsAction())
        assert [tool.input_schema["required"] for tool in listed.observation.tools or ()] == [["message"], ["message"]]


@pytest.mark.anyio
async def test_sessions_are_apart_and_counted() -> None:
    """Two sessions have two episodes; MAX_CONCURRENT_ENVS is the capacity.

    Mutation: keep the state on the class
    """
    with serve("echo_env.server.app:app", MAX_CONCURRENT_ENVS="2") as address:
        async with EchoEnv(base_url=f"http://{address}") as one, EchoEnv(base_url=f"http://{address}") as two:
            await one.reset(episode_id="one")
            await two.reset(episode_id="two")
            await one.step(HELLO)
            assert [(s.episode_id, s.step_count) for s in (await one.state(), await two.state())] == [
                ("one", 1),
                ("two", 0),
            ]
            third = GenericEnvClient(base_url=f"http://{address}")
            with pytest.raises(CapacityError, match="2/2"):
                await third.reset()
            await third.close()


def test_in_its_own_folder(tmp_path: Path) -> None:
    """``uvicorn server.app:app`` works where only the folder's files are, as in an image.

    Mutation: import echo_env in the server
    """
    shutil.copytree(ROOT / "envs" / "echo_env", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "echo_env.py").write_text("raise ImportError('not installed here')")
    path = os.pathsep.join(filter(None, (str(tmp_path / "path"), os.environ.get("PYTHONPATH"))))
    with serve("server.app:app", cwd=tmp_path / "app", PYTHONPATH=path) as address:
        with EchoEnv(base_url=f"http://{address}").sync() as client:
            assert client.reset().observation.echoed_message == "Echo environment ready!"


def test_main_serves_on_the_port_asked_for() -> None:
    """The console script's function listens on PORT and ends on SIGTERM.

    Mutation: ignore PORT
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from echo_env.server.app import main; main(host='127.0.0.1')"]
    process = subprocess.Popen(
        command, cwd=ROOT / "envs", env={**os.environ, "PORT": str(port)}, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines: list[str] = []
        while "running on" not in (lines or [""])[-1]:
            line = process.stderr.readline()
            assert line, "".join(lines)
            lines.append(line)
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=DEADLINE, trust_env=False)
        assert answer.json() == {"status": "healthy"}
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=DEADLINE)
    finally:
        process.kill()
        process.communicate()


def test_the_client_knows_its_folder() -> None:
    """`EchoEnv.launch()` needs no image: the package carries openenv.yaml and Dockerfile.

    Mutation: leave openenv.yaml out of the package
    """
    image = for_client(EchoEnv)
    assert (image.kind, image.name) == ("folder", "echo_env")
    assert Path(image.path or "") == ROOT / "envs" / "echo_env"
    assert Path(image.dockerfile or "").name == "Dockerfile"
    assert image.config is not None
    assert image.config.ports == (8000,)
    assert image.config.argv[:4] == ("python3", "-m", "uvicorn", "server.app:app")


def test_the_environment_without_a_server() -> None:
    """It is an ordinary object: reset, step and state work by themselves.

    Mutation: start the count at the first reset only
    """
    env = EchoEnvironment()
    assert EchoEnvironment.SUPPORTS_CONCURRENT_SESSIONS
    env.step(HELLO)
    assert env.state.step_count == 1
    assert env.reset().reward == 0.0
    assert env.state.step_count == 0


def test_reading_an_older_servers_answers() -> None:
    """Without the additions the greeting comes from metadata and the reward is None.

    Mutation: read the greeting from the observation only
    """
    metadata = {"status": "ready", "message": "Echo environment ready!"}
    greeting = EchoObservation.from_wire(
        {"observation": {"metadata": metadata}, "reward": 0.0, "done": False, "metadata": metadata}
    )
    assert greeting.echoed_message == "Echo environment ready!"
    raw: dict[str, Any] = {
        "content": [],
        "structured_content": {"result": 3},
        "meta": None,
        "data": 3,
        "is_error": False,
    }
    answer = EchoObservation.from_wire(
        {"observation": {"metadata": {}, "tool_name": "t", "result": raw, "error": None}, "reward": None, "done": False}
    )
    assert (answer.result, answer.raw_result, answer.reward) == (3, raw, None)
