"""The same two tools by our decorator and on a FastMCP server: ``uvicorn tests.interop.agentic:tools``."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP

from openenv_sandbox.models import Action, CallToolAction, Observation, State
from openenv_sandbox.server import create_app
from openenv_sandbox.server.mcp_environment import MCPEnvironment
from openenv_sandbox.server.tools import ToolEnvironment, tool


class Tools(ToolEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    count = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.count = 100
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.count)

    @tool
    def add(self, amount: int = 1) -> int:
        """Count up."""
        self.count += amount
        return self.count

    @tool
    def boom(self) -> None:
        """Fail."""
        raise ValueError("bad thing")


class OnFastMCP(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    count = 0

    def __init__(self) -> None:
        server: Any = FastMCP("agentic", instructions="Count.")

        def add(amount: int = 1) -> int:
            """Count up."""
            self.count += amount
            return self.count

        def boom() -> None:
            """Fail."""
            raise ValueError("bad thing")

        server.tool(add)
        server.tool(boom)
        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.count = 100
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.count)


tools = create_app(Tools, CallToolAction, Observation, max_concurrent_envs=2)
fastmcp = create_app(OnFastMCP, CallToolAction, Observation, max_concurrent_envs=2)
