"""A session on a client of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.harness.types import Message, ResourceSession, ToolResult, VerifyResult
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openenv_sandbox.models import Tool

RESERVED_TOOL_NAMES = frozenset({"reset", "step", "state", "close"})


class StepEnvSessionAdapter(ResourceSession):
    """Offers the steps of an environment as tools.

    The environment is reset when this is constructed; a failure closes the client.

    Args:
        client: Any blocking client; one with ``sync()`` is asked for its blocking face.
        task: Given to the builders.
        seed: Passed to reset where it is not None.
        episode_id: Passed to reset where it is not None.
        tool_specs: The tools on offer.
        action_builder: Makes the action of ``(name, arguments)``.
        initial_messages_builder: Makes the first messages of ``(reset result, task)``.
        tool_result_builder: Makes the result of ``(name, arguments, step result, state)``; by default the observation.
        verify_builder: Judges ``(transcript, final_state, last step result, state)``; by default reward and end are
            those of the last step.
        reset_kwargs: Further arguments of reset.

    Raises:
        ValueError: A tool has a reserved name, or two have one name.
    """

    def __init__(
        self,
        client: Any,
        *,
        task: Any = None,
        seed: int | None = None,
        episode_id: str | None = None,
        tool_specs: Sequence[Tool],
        action_builder: Callable[[str, dict[str, Any]], Any],
        initial_messages_builder: Callable[[Any, Any], list[Message]],
        tool_result_builder: Callable[[str, dict[str, Any], Any, Any], ToolResult] | None = None,
        verify_builder: Callable[[list[Message], Any, Any, Any], VerifyResult] | None = None,
        reset_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tools = {tool.name: tool for tool in tool_specs}
        reserved = RESERVED_TOOL_NAMES & set(self._tools)
        if reserved:
            raise ValueError(f"reserved tool names: {', '.join(sorted(reserved))}")
        if len(self._tools) != len(tool_specs):
            raise ValueError("two tools have one name")
        self._client = client.sync() if callable(getattr(client, "sync", None)) else client
        self._task = task
        self._action_builder = action_builder
        self._initial_messages_builder = initial_messages_builder
        self._tool_result_builder = tool_result_builder or _observation_of
        self._verify_builder = verify_builder or _last_step
        self._closed = False
        given = {"seed": seed, "episode_id": episode_id}
        try:
            wanted = {name: value for name, value in given.items() if value is not None}
            self._first = self._last = self._client.reset(**{**(reset_kwargs or {}), **wanted})
            self._state = self._client.state()
        except BaseException:
            self.close()
            raise

    def initial_messages(self) -> list[Message]:
        """What the builder makes of the reset."""
        return self._initial_messages_builder(self._first, self._task)

    def list_tools(self) -> list[Tool]:
        """The tools on offer."""
        return list(self._tools.values())

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Take the step that the call stands for.

        Raises:
            KeyError: There is no such tool.
        """
        if name not in self._tools:
            raise KeyError(f"no tool {name!r}; there is {', '.join(self._tools) or 'none'}")
        self._last = self._client.step(self._action_builder(name, arguments))
        self._state = self._client.state()
        return self._tool_result_builder(name, arguments, self._last, self._state)

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """What the builder makes of the last step."""
        return self._verify_builder(transcript, final_state, self._last, self._state)

    def close(self) -> None:
        """Close the client, once."""
        if not self._closed:
            self._closed = True
            self._client.close()


def _observation_of(name: str, arguments: dict[str, Any], result: Any, state: Any) -> ToolResult:
    data = codec.loads(codec.dumps(result.observation))
    return ToolResult(data=data, done=bool(result.done), metadata={"reward": result.reward})


def _last_step(transcript: list[Message], final_state: Any, result: Any, state: Any) -> VerifyResult:
    return VerifyResult(env_reward=result.reward, done=bool(result.done))
