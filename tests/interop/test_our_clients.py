"""Our clients step an echo environment served by the published package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from echo_env import CallToolAction, EchoEnv

from openenv_sandbox.client import GenericEnvClient, MCPToolClient
from openenv_sandbox.errors import ActionInvalid, CapacityError, ExecutionError
from tests.wire.serving import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop
GREETING = "Echo environment ready!"
CALL = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}


@pytest.fixture(scope="module")
def url(reference: str) -> Iterator[str]:
    """Capacity 1: a session that is not closed properly is in the way of the next test."""
    with serve("reference_echo:app", cwd=Path(__file__).parent / "reference", python=reference) as address:
        yield f"http://{address}"


@pytest.mark.anyio
async def test_generic_async(url: str) -> None:
    """Reset, step, list, state, an invalid action, and a full server.

    Mutation: treat every error frame alike
    """
    async with GenericEnvClient(base_url=url) as client:
        assert (await client.reset(seed=3, episode_id="ep")).observation["metadata"]["message"] == GREETING
        result = await client.step(CALL)
        assert (result.observation["result"]["data"], result.reward, result.done) == ("hi", None, False)
        assert len((await client.step({"type": "list_tools"})).observation["tools"]) == 2
        assert await client.state() == {"episode_id": "ep", "step_count": 2}
        with pytest.raises(ActionInvalid, match=r"Server error: Invalid message \(code: VALIDATION_ERROR\)"):
            await client.step({"x": 1})
        second = GenericEnvClient(base_url=url)
        with pytest.raises(CapacityError, match="1/1"):
            await second.reset()
        await second.close()
        assert (await client.state())["step_count"] == 2


def test_generic_sync(url: str) -> None:
    """The blocking socket against a server that offers deflate and pings.

    Mutation: fail on a ping while waiting for a reply
    """
    with GenericEnvClient(base_url=url).sync() as client:
        assert client.reset().observation["metadata"]["message"] == GREETING
        assert client.step(CALL).observation["result"]["data"] == "hi"
        assert client.state()["step_count"] == 1


@pytest.mark.anyio
async def test_tool_client(url: str) -> None:
    """Session by /mcp and everything that goes with it, twice.

    Mutation: leave the session open on the server
    """
    for _ in range(2):
        async with MCPToolClient(base_url=url) as client:
            await client.reset()
            assert [tool.name for tool in await client.list_tools()] == ["echo_message", "echo_with_length"]
            assert await client.call_tool("echo_with_length", message="four") == {"message": "four", "length": 4}
            result = await client.step(CallToolAction(tool_name="echo_message", arguments={"message": "s"}))
            assert result.observation.result["data"] == "s"
            assert (await client.state()).step_count == 1
            with pytest.raises(ExecutionError, match="Unknown tool: 'nope'"):
                await client.call_tool("nope")


@pytest.mark.anyio
async def test_echo_env(url: str) -> None:
    """`EchoEnv` unwraps the value, finds the greeting in metadata, and the reward is None.

    Mutation: require the additions of our own server
    """
    async with EchoEnv(base_url=url) as client:
        assert (await client.reset()).observation.echoed_message == GREETING
        action = CallToolAction(tool_name="echo_message", arguments={"message": "Hello, World!"})
        result = await client.step(action)
        assert (result.observation.result, result.reward) == ("Hello, World!", None)
        assert await client.call_tool("echo_message", message="hi") == "hi"
        assert len(await client.list_tools()) == 2


def test_echo_env_sync(url: str) -> None:
    """The same without a loop.

    Mutation: require the additions of our own server
    """
    with EchoEnv(base_url=url).sync() as client:
        assert client.reset().observation.echoed_message == GREETING
        action = CallToolAction(tool_name="echo_message", arguments={"message": "Hello, World!"})
        result = client.step(action)
        assert (result.observation.result, result.reward) == ("Hello, World!", None)
        assert client.call_tool("echo_message", message="hi") == "hi"
