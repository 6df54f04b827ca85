"""An echo environment on the published package, served by its own server.

Runs in that package's environment, never in ours: nothing here imports our code.
"""

import uuid

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class EchoEnvironment(MCPEnvironment):
    """Two tools, a greeting, and a step count."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        tools = FastMCP("echo")

        @tools.tool
        def echo_message(message: str) -> str:
            """Echo back the provided message.

            Args:
                message: The message to echo back
            """
            return message

        @tools.tool
        def echo_with_length(message: str) -> dict:
            """Echo back the message with its length.

            Args:
                message: The message to echo back
            """
            return {"message": message, "length": len(message)}

        super().__init__(tools)
        self.episode = State(episode_id=str(uuid.uuid4()), step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.episode = State(episode_id=episode_id or str(uuid.uuid4()), step_count=0)
        return Observation(reward=0.0, metadata={"status": "ready", "message": "Echo environment ready!"})

    def step(self, action, timeout_s=None, **kwargs):
        self.episode.step_count += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action, timeout_s=None, **kwargs):
        self.episode.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(metadata={"error": "this environment takes tool calls only"})

    @property
    def state(self):
        return self.episode


app = create_app(EchoEnvironment, CallToolAction, CallToolObservation, env_name="echo_env")
