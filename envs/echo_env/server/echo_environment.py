"""The echo environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server.tools import ToolEnvironment, tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.server.tools import ToolResult

GREETING = "Echo environment ready!"


class Greeting(Observation):
    """What a reset shows.

    Attributes:
        echoed_message: The greeting, which older clients read in ``metadata["message"]``.
    """

    echoed_message: str = GREETING


class EchoEnvironment(ToolEnvironment):
    """Says back what it is told; every call is one step and the episode never ends by itself."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        """Start an episode.

        Args:
            seed: Accepted and without effect: nothing here is random.
            episode_id: Name of the episode; a random one by default.
            **kwargs: Ignored.
        """
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Greeting(reward=0.0, metadata={"status": "ready", "message": GREETING})

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """List the tools or call one of them."""
        self._state.step_count += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)

    def tool_reward(self, name: str, arguments: Mapping[str, Any], result: ToolResult) -> float:
        """A tenth of a point per character, so that rollouts have something to compare."""
        return len(str(arguments.get("message", ""))) / 10

    @property
    def state(self) -> State:
        """Episode and step count."""
        return self._state

    @tool
    def echo_message(self, message: str) -> str:
        """Echo back the provided message.

        Args:
            message: The message to echo back
        """
        return message

    @tool
    def echo_with_length(self, message: str) -> dict:  # type: ignore[type-arg]
        """Echo back the message with its length.

        Args:
            message: The message to echo back
        """
        return {"message": message, "length": len(message)}
