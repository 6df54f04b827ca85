from typing import Any

from fastmcp import Context, FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class Rolls(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: Any = FastMCP("rolls")

        @server.tool
        def add(a: int, b: int = 2) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def describe(text: str) -> dict[str, Any]:
            """Say how long a text is."""
            return {"text": text, "length": len(text)}

        @server.tool
        async def named(ctx: Context) -> str:
            """Name of the server, by the injected context."""
            return str(ctx.fastmcp.name)

        @server.tool
        def boom() -> str:
            """Fail."""
            raise RuntimeError("it broke")

        @server.tool
        async def forever() -> str:
            """Never answer."""
            import asyncio

            await asyncio.Event().wait()
            return "never"

        super().__init__(server)

        @self.tool(mode="production")
        def look() -> str:
            """Only where agents are served."""
            return "production"

        @self.tool(mode="simulation")
        def peek() -> str:
            """Only in training."""
            return "simulation"

        self._state = State(episode_id="e", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self._state = State(episode_id=episode_id or "e", step_count=0)
        return Observation(reward=0.0, metadata={"message": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"error": f"no {type(action).__name__}"})

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    @property
    def state(self) -> State:
        return self._state
