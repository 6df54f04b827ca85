"""Tool clients: the recorded exchange of sessions over HTTP and steps over the socket, on our own server."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from openenv_sandbox.client import MCPToolClient
from openenv_sandbox.errors import CapacityError, ExecutionError
from openenv_sandbox.models import (
    Action,
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Observation,
    State,
    Tool,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


def make_app() -> Any:
    from openenv_sandbox.server.app import create_app
    from openenv_sandbox.server.environment import Environment

    class Tools(Environment[Any, Any, State]):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def reset(self, **kwargs: Any) -> Observation:
            self.count = 0
            return Observation(reward=0.0, metadata={"message": "ready"})

        def step(self, action: Action, **kwargs: Any) -> Observation:
            self.count += 1
            if isinstance(action, ListToolsAction):
                schema = {"type": "object", "properties": {"message": {"type": "string"}}}
                return ListToolsObservation(tools=[Tool(name="echo", description="Echo.", input_schema=schema)])
            assert isinstance(action, CallToolAction)
            if action.tool_name != "echo":
                raise ValueError(f"Unknown tool: {action.tool_name!r}")
            return CallToolObservation(tool_name="echo", result={"data": action.arguments["message"]})

        @property
        def state(self) -> State:
            return State(episode_id="e", step_count=self.count)

    return create_app(Tools, CallToolAction, CallToolObservation)


@pytest.fixture
def tool_server() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(make_app(), host="127.0.0.1", port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),), daemon=True)
    thread.start()
    started = threading.Event()
    while not server.started:
        started.wait(0.01)
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


def test_other_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="production"):
        MCPToolClient("http://x", mode="simulation")
    assert MCPToolClient("http://x").mode == "production"


async def test_tools_and_steps_share_one_session(tool_server: str) -> None:
    async with MCPToolClient(tool_server) as client:
        first = await client.reset()
        assert first.observation.metadata == {"message": "ready"}
        tools = await client.list_tools()
        assert [tool.name for tool in tools] == ["echo"]
        assert tools[0].input_schema["type"] == "object"
        assert await client.has_tool("echo")
        assert await client.get_tool("nope") is None
        await client.call_tool("echo", message="yo")
        result = await client.step(CallToolAction(tool_name="echo", arguments={"message": "s"}))
        assert isinstance(result.observation, CallToolObservation)
        assert isinstance((await client.step(ListToolsAction())).observation, ListToolsObservation)
        with pytest.raises(ExecutionError, match="Tool 'nope' failed: "):
            await client.call_tool("nope")
        assert (await client.state()).step_count >= 3
    async with MCPToolClient(tool_server) as again:
        await again.reset()


def test_blocking_tools_and_a_freed_slot(tool_server: str) -> None:
    with MCPToolClient(tool_server).sync() as client:
        client.reset()
        assert [tool.name for tool in client.list_tools()] == ["echo"]
        client.call_tool("echo", message="yo")
        second = MCPToolClient(tool_server).sync()
        with pytest.raises(CapacityError, match="CAPACITY_REACHED"):
            second.reset()
        second.close()
    with MCPToolClient(tool_server).sync() as client:
        assert client.reset().done is False
