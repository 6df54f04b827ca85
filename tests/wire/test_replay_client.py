"""Our clients send what the published ones sent, call for call, and understand the recorded answers."""

from __future__ import annotations

import pytest

from openenv_sandbox.client import GenericEnvClient, MCPToolClient
from openenv_sandbox.errors import ActionInvalid, CapacityError, ExecutionError
from openenv_sandbox.models import CallToolAction
from tests.wire.scripted import Script, ScriptedServer

GREETING = "Echo environment ready!"


@pytest.mark.anyio
async def test_generic_async() -> None:
    """Reset, step, state, and a second client at capacity.

    Mutation: leave `data` out of a reset without arguments
    """
    with ScriptedServer(Script("client-0.10.0-generic_async")) as server:
        async with GenericEnvClient(base_url=server.url) as client:
            assert (await client.reset()).observation["metadata"]["message"] == GREETING
            tools = (await client.step({"type": "list_tools"})).observation["tools"]
            assert [tool["name"] for tool in tools] == ["echo_message", "echo_with_length"]
            assert (await client.state())["step_count"] == 1
            second = GenericEnvClient(base_url=server.url)
            with pytest.raises(CapacityError, match=r"Server error: Server at capacity: 1/1 .*CAPACITY_REACHED"):
                await second.reset()
            await second.close()
    assert server.seen == server.script.expected


def test_generic_sync() -> None:
    """The blocking face puts the same on the wire.

    Mutation: nest the action of a step under a key of its own
    """
    with ScriptedServer(Script("client-0.10.0-generic_sync")) as server:
        with GenericEnvClient(base_url=server.url).sync() as client:
            assert client.reset(seed=3).reward == 0.0
            action = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
            assert client.step(action).observation["result"]["data"] == "hi"
            assert client.state()["step_count"] == 1
            with pytest.raises(ActionInvalid, match="VALIDATION_ERROR"):
                client.step({"x": 1})
    assert server.seen == server.script.expected


@pytest.mark.anyio
async def test_tool_client() -> None:
    """Session by POST, steps over the socket attached to it, tools by POST, both closed in the recorded order.

    Mutation: close the session over HTTP before the socket
    """
    with ScriptedServer(Script("client-0.10.0-mcp")) as server:
        async with MCPToolClient(base_url=server.url) as client:
            await client.reset()
            assert [tool.name for tool in await client.list_tools()] == ["echo_message", "echo_with_length"]
            assert await client.call_tool("echo_message", message="yo") == "yo"
            result = await client.step(CallToolAction(tool_name="echo_message", arguments={"message": "s"}))
            assert result.observation.result["data"] == "s"
            assert (await client.state()).step_count == 1
            with pytest.raises(ExecutionError, match="Unknown tool: 'nope'"):
                await client.call_tool("nope")
    assert server.seen == server.script.expected
