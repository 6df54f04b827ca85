"""A tool-call environment on the published package: the same two tools as our echo_env, on FastMCP."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class EchoEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("echo_env")

        @server.tool
        def echo_message(message: str) -> str:
            """Give the message back."""
            return message

        @server.tool
        def echo_with_length(message: str) -> dict:
            """Give the message and its length back."""
            return {"message": message, "length": len(message)}

        super().__init__(server)
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kw: Any) -> Observation:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Observation(done=False, reward=0.0, metadata={"message": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kw: Any) -> Observation:
        return Observation(done=False, reward=0.0, metadata={"error": "unknown action"})

    @property
    def state(self) -> State:
        return self._state


app = create_app(EchoEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=300)
