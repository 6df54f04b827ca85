"""Who drives a session: the model directly, or a program that does so by itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from openenv_sandbox.harness.bridge import SessionMCPBridge
from openenv_sandbox.harness.types import (
    HarnessRolloutResult,
    HarnessRunLimits,
    Message,
    ModelStep,
    ResourceSession,
    RolloutEvent,
    ToolResult,
    ToolTraceEntry,
)
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.harness.types import ModelStepResult
    from openenv_sandbox.llm import ToolCall


class HarnessAdapter(ABC):
    """Runs one session to its end: white box, where every answer is asked for here, or black box."""

    @abstractmethod
    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Run with the model's answers under our control."""

    @abstractmethod
    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Run a program that asks the model by itself."""


class MCPHarnessAdapter(HarnessAdapter):
    """Asks the model, calls the tools it wants, and tells it the results, until it wants none."""

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Run the loop.

        Args:
            model_step: Asks the policy.
            session: The episode; not closed here.
            limits: When to end at the latest.

        Returns:
            The rollout; ``metrics["truncated"]`` is True where a limit ended it.
        """
        run = _Loop(session, limits or HarnessRunLimits())
        while run.turns < run.limits.max_turns and not run.ended:
            run.turn(model_step)
        if not run.ended:
            run.truncated = True
        return run.finish()

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Refuse: this adapter asks the model itself."""
        raise NotImplementedError("MCPHarnessAdapter runs white box only: use run_white_box, or CLIHarnessAdapter")


class CLIHarnessAdapter(HarnessAdapter):
    """Hands the tools to a program that drives the episode by itself.

    Args:
        runner: Called as ``runner(bridge, session, limits)``; returns the rollout.
    """

    def __init__(
        self, runner: Callable[[SessionMCPBridge, ResourceSession, HarnessRunLimits], HarnessRolloutResult]
    ) -> None:
        self.runner = runner

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Refuse: the program asks the model itself."""
        raise NotImplementedError("CLIHarnessAdapter runs black box only: use run_black_box, or MCPHarnessAdapter")

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Run the program to its end."""
        return self.runner(SessionMCPBridge(session), session, limits or HarnessRunLimits())


class _Loop:
    """The state of one white-box run."""

    def __init__(self, session: ResourceSession, limits: HarnessRunLimits) -> None:
        self.session = session
        self.limits = limits
        self.tools = session.list_tools()
        self.messages: list[Message] = list(session.initial_messages())
        self.trace: list[ToolTraceEntry] = []
        self.events: list[RolloutEvent] = []
        self.steps: list[ModelStepResult] = []
        self.turns = 0
        self.done = False
        self.ended = False
        self.truncated = False

    def turn(self, model_step: ModelStep) -> None:
        """One answer of the model and the calls it asks for."""
        step = model_step(list(self.messages), self.tools, dict(self.limits.sampling))
        self.turns += 1
        self.steps.append(step)
        wanted = step.response.tool_calls
        calls = wanted[: self.limits.max_tool_calls_per_turn]
        # A call that is not made is not in the conversation either: services refuse a call without its result.
        kept = type(step.response)(step.response.content, list(calls))
        self.messages.append(kept.to_message_dict())
        self.events.append(RolloutEvent("model_response", {"turn": self.turns, "tool_calls": len(wanted)}))
        if not calls:
            self.ended = True
        for call in calls:
            if self._over_budget():
                self.truncated = self.ended = True
                self._drop_unanswered()
                return
            self._call(call)
            if self.done:
                self.ended = True
                self._drop_unanswered()
                return

    def _over_budget(self) -> bool:
        limit = self.limits.max_total_tool_calls
        return limit is not None and len(self.trace) >= limit

    def _call(self, call: ToolCall) -> None:
        result = self.session.call_tool(call.name, call.args)
        self.trace.append(ToolTraceEntry(call.name, call.args, result))
        self.done = result.done
        self.messages.append(
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": tool_content(result)}
        )
        self.events.append(RolloutEvent("tool_result", {"tool": call.name, "done": result.done, "error": result.error}))

    def _drop_unanswered(self) -> None:
        """Take calls that were not made out of the last answer of the model."""
        at = max(index for index, message in enumerate(self.messages) if message["role"] == "assistant")
        answered = {message["tool_call_id"] for message in self.messages[at + 1 :]}
        message = self.messages[at]
        message["tool_calls"] = [call for call in message["tool_calls"] if call["id"] in answered]
        if not message["tool_calls"]:
            del message["tool_calls"]

    def finish(self) -> HarnessRolloutResult:
        """The rollout."""
        metrics: dict[str, Any] = {"turns": self.turns, "tool_calls": len(self.trace)}
        if self.truncated:
            metrics["truncated"] = True
        return HarnessRolloutResult(
            messages=self.messages,
            tool_trace=self.trace,
            events=self.events,
            done=self.done,
            metrics=metrics,
            prompt_ids=list(self.steps[0].prompt_ids) if self.steps else [],
            completion_ids=[token for step in self.steps for token in step.completion_ids],
            logprobs=[value for step in self.steps for value in step.logprobs],
        )


def tool_content(result: ToolResult) -> str:
    """What the model reads of a tool's result: text as it is, anything else as JSON with sorted keys."""
    if result.error is not None:
        return result.error
    if isinstance(result.data, str):
        return result.data
    return json.dumps(codec.loads(codec.dumps(result.data)), sort_keys=True)
