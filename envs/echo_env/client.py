"""The client of the echo environment."""

from __future__ import annotations

from typing import Any

from openenv_sandbox.client import EnvClient, StepResult
from openenv_sandbox.errors import ExecutionError
from openenv_sandbox.models import Action, CallToolAction, ListToolsAction, State, Tool

from .models import EchoObservation


class EchoEnv(EnvClient[Action, EchoObservation, State]):
    """Talks to an echo environment.

    async with EchoEnv(base_url="http://localhost:8000") as env:
        result = await env.reset()
        result = await env.step(CallToolAction(tool_name="echo_message", arguments={"message": "hi"}))
        text = await env.call_tool("echo_message", message="hi")
    """

    async def list_tools(self) -> list[Tool]:
        """The tools on offer."""
        return (await self.step(ListToolsAction())).observation.tools or []

    async def call_tool(self, name: str, **arguments: Any) -> Any:
        """Call one tool and return its value.

        Args:
            name: The tool.
            **arguments: Its arguments.

        Raises:
            ExecutionError: There is no such tool, the arguments do not fit, or the tool failed.
        """
        observation = (await self.step(CallToolAction(tool_name=name, arguments=arguments))).observation
        if observation.error is not None:
            kind = observation.error.error_type.value
            raise ExecutionError(f"Tool {name!r} failed: {observation.error.message}", code=kind)
        return observation.result

    def _step_payload(self, action: Action) -> dict[str, Any]:
        payload = super()._step_payload(action)
        if not payload.get("metadata"):
            payload.pop("metadata", None)
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[EchoObservation]:
        observation = EchoObservation.from_wire(payload)
        return StepResult(
            observation=observation,
            reward=payload.get("reward"),
            done=observation.done,
            metadata=payload.get("metadata"),
        )

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State.model_validate(payload)
