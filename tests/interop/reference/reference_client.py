"""Steps an echo server with the clients of the published package and prints what they saw as JSON.

Runs in that package's environment, never in ours: nothing here imports our code.

    reference_client.py KIND BASE_URL
"""

import asyncio
import json
import sys

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Observation, State
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

CALL = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "Hello, World!"}}


class Seen(Observation):
    text: str = ""


class Typed(EnvClient[CallToolAction, Seen, State]):
    """A subclass of the form that most packages have."""

    def _step_payload(self, action):
        return {"type": "call_tool", "tool_name": action.tool_name, "arguments": action.arguments}

    def _parse_result(self, payload):
        fields = payload["observation"]
        text = (fields.get("result") or {}).get("data") or fields["metadata"].get("message", "")
        return StepResult(observation=Seen(text=text), reward=payload.get("reward"), done=payload["done"])

    def _parse_state(self, payload):
        return State(**payload)


async def generic_async(url):
    async with GenericEnvClient(base_url=url) as env:
        greeting = await env.reset(seed=3, episode_id="ep")
        answer = await env.step(CALL)
        tools = await env.step({"type": "list_tools"})
        state = await env.state()
        try:
            await env.step({"x": 1})
        except RuntimeError as error:
            failure = str(error)
    return {
        "greeting": greeting.observation["metadata"]["message"],
        "data": answer.observation["result"]["data"],
        "reward": answer.reward,
        "tools": [tool["name"] for tool in tools.observation["tools"]],
        "state": state,
        "failure": failure,
    }


def generic_sync(url):
    with GenericEnvClient(base_url=url).sync() as env:
        greeting = env.reset()
        answer = env.step(CALL)
        state = env.state()
    return {
        "greeting": greeting.observation["metadata"]["message"],
        "data": answer.observation["result"]["data"],
        "reward": answer.reward,
        "steps": state["step_count"],
    }


async def tool_client(url):
    async with MCPToolClient(base_url=url) as env:
        greeting = await env.reset()
        tools = await env.list_tools()
        called = await env.call_tool("echo_with_length", message="four")
        answer = await env.step(CallToolAction(tool_name="echo_message", arguments={"message": "s"}))
        state = await env.state()
        try:
            await env.call_tool("nope")
        except Exception as error:
            failure = str(error)
    async with MCPToolClient(base_url=url) as env:  # the slot of the first is free again
        again = await env.call_tool("echo_message", message="again")
    return {
        "greeting": greeting.observation.metadata["message"],
        "tools": [tool.name for tool in tools],
        "called": called,
        "data": answer.observation.result["data"],
        "steps": state.step_count,
        "failure": failure,
        "again": again,
    }


def typed(url):
    with Typed(base_url=url).sync() as env:
        greeting = env.reset()
        answer = env.step(CallToolAction(tool_name="echo_message", arguments={"message": "Hello, World!"}))
        state = env.state()
    return {"greeting": greeting.observation.text, "text": answer.observation.text, "steps": state.step_count}


def capacity(url):
    with GenericEnvClient(base_url=url).sync() as first:
        first.reset()
        second = GenericEnvClient(base_url=url).sync()
        try:
            second.connect()
            second.reset()
        except RuntimeError as error:
            return {"failure": str(error)}
        finally:
            second.close()
    return {"failure": ""}


def main():
    kind, url = sys.argv[1:]
    result = {"generic_sync": generic_sync, "typed": typed, "capacity": capacity}.get(kind)
    if result is not None:
        seen = result(url)
    else:
        seen = asyncio.run({"generic_async": generic_async, "tool_client": tool_client}[kind](url))
    print(json.dumps(seen))  # noqa: T201


main()
