"""The data of a rollout, and what takes part in one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from openenv_sandbox.llm import LLMResponse
    from openenv_sandbox.models import Tool

Message = dict[str, Any]
"""One message of a conversation, in the form of OpenAI's chat API."""


@dataclass
class ToolResult:
    """What a tool call of a session gave.

    Attributes:
        data: What the tool returned.
        done: Whether the episode is over.
        metadata: Anything beside it, such as the reward of the step.
        error: Why there is no result.
    """

    data: Any = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class VerifyResult:
    """What the environment says about an episode.

    Attributes:
        env_reward: Its reward; None when it has none, which is not 0.
        done: Whether the episode reached its end.
        metrics: Further figures.
        artifacts: Further outcomes.
    """

    env_reward: float | None = None
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutEvent:
    """Something that happened during a rollout."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolTraceEntry:
    """One tool call and what came of it."""

    tool_name: str
    arguments: dict[str, Any]
    result: ToolResult


@dataclass
class ModelStepResult:
    """One answer of the policy, with its tokens where they are known."""

    response: LLMResponse
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class HarnessRolloutResult:
    """A whole rollout.

    Attributes:
        messages: The conversation.
        tool_trace: The tool calls in order.
        events: What happened, in order.
        done: Whether the episode is over.
        metrics: ``turns``, ``tool_calls``, and ``truncated`` where a limit ended it.
        prompt_ids: Tokens of the first prompt.
        completion_ids: Tokens of all answers.
        logprobs: Their log-probabilities.
    """

    messages: list[Message]
    tool_trace: list[ToolTraceEntry]
    events: list[RolloutEvent]
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class HarnessRunLimits:
    """When a rollout ends at the latest.

    Attributes:
        max_turns: Answers of the model.
        max_tool_calls_per_turn: Calls taken from one answer; None for all.
        max_total_tool_calls: Calls in all; None for no limit.
        sampling: Passed to the model with every turn.
    """

    max_turns: int = 10
    max_tool_calls_per_turn: int | None = None
    max_total_tool_calls: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)


class TraceEntry(TypedDict, total=False):
    """One request to a model as a proxy in front of it sees it."""

    request: dict[str, Any]
    response: dict[str, Any]
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    completion_tokens: list[str]
    per_token_logps: list[float]
    loss_mask: list[int]
    reward: float | None
    metadata: dict[str, Any]


class ModelStep(Protocol):
    """Asks the policy for its next answer."""

    def __call__(self, messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        """The answer to a conversation."""
        ...


class ResourceSession(ABC):
    """One episode, offered as tools. All methods block."""

    @abstractmethod
    def initial_messages(self) -> list[Message]:
        """The conversation before the model's first answer."""

    @abstractmethod
    def list_tools(self) -> list[Tool]:
        """The tools on offer."""

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call one."""

    @abstractmethod
    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """Judge the episode.

        Args:
            transcript: The whole conversation.
            final_state: What a harness knows of the end beside it.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the episode; may be called twice."""


class ResourceSessionFactory(ABC):
    """Makes sessions."""

    @abstractmethod
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> ResourceSession:
        """A session for a task.

        Args:
            task: What the environment understands by it.
            seed: Makes the episode repeatable.
            episode_id: Name of the episode.
        """
