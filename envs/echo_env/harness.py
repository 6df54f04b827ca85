"""Episodes of the echo environment for a model: ``openenv collect echo:echo_message``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.harness import ModelStepResult, ResourceSessionFactory, StepEnvSessionAdapter
from openenv_sandbox.llm import LLMResponse, ToolCall
from openenv_sandbox.models import CallToolAction, Tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.harness import Message

    from .client import EchoEnv

SCHEMA = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}


class EchoSessionFactory(ResourceSessionFactory):
    """Sessions with one tool.

    Args:
        client_factory: Makes a client for each.
        tool_name: ``echo_message`` or ``echo_with_length``.
    """

    def __init__(self, client_factory: Callable[[], EchoEnv], *, tool_name: str = "echo_message") -> None:
        self._client_factory = client_factory
        self._tool = Tool(name=tool_name, description="Echo back the provided message.", input_schema=SCHEMA)

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> StepEnvSessionAdapter:
        """A session that is open until it is closed."""
        return StepEnvSessionAdapter(
            self._client_factory(),
            task=task,
            seed=seed,
            episode_id=episode_id,
            tool_specs=[self._tool],
            action_builder=lambda name, arguments: CallToolAction(tool_name=name, arguments=arguments),
            initial_messages_builder=lambda result, task: [
                {"role": "user", "content": task or "Say something long: a character is worth a tenth of a point."}
            ],
        )


def scripted_policy(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
    """Says a little more in every turn."""
    turn = sum(message["role"] == "assistant" for message in messages) + 1
    call = ToolCall(f"call-{turn}", tools[0].name, {"message": "ha" * turn})
    return ModelStepResult(response=LLMResponse("", [call]))
