"""The data that client and server exchange: actions, observations, states and the tool-call forms of them.

Environments subclass these, change them in place and redeclare their fields, so they are mutable, assignments are
validated, and arbitrary types are allowed.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Action(BaseModel):
    """What an agent does in one step; subclass it and add fields.

    Attributes:
        metadata: Anything beside the action itself.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)

    metadata: dict[str, Any] = Field(default_factory=dict, description="Anything beside the action itself")


class Observation(BaseModel):
    """What the environment shows after a reset or step; subclass it and add fields.

    Attributes:
        done: Whether the episode is over.
        reward: Reward of the step; None when there is none.
        metadata: Anything beside the observation itself.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)

    done: bool = Field(default=False, description="Whether the episode is over")
    reward: bool | int | float | None = Field(default=None, description="Reward of the step")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Anything beside the observation itself")


class State(BaseModel):
    """What the environment knows about its episode; extra fields are kept.

    Attributes:
        episode_id: Identifies the episode.
        step_count: Steps since the last reset.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    episode_id: str | None = Field(default=None, description="Identifies the episode")
    step_count: int = Field(default=0, ge=0, description="Steps since the last reset")


class Tool(BaseModel):
    """A tool an environment offers.

    Attributes:
        name: What `CallToolAction.tool_name` must say.
        description: What it does.
        input_schema: JSON schema of its arguments.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="Unique name of the tool")
    description: str = Field(description="What the tool does")
    input_schema: dict[str, Any] = Field(description="JSON schema of the arguments")


class ToolErrorType(str, Enum):
    """Why a tool call failed without the tool itself answering."""

    EXECUTION_ERROR = "execution_error"
    INVALID_ARGS = "invalid_args"
    TRANSPORT_ERROR = "transport_error"
    TOOL_NOT_FOUND = "tool_not_found"
    TIMEOUT = "timeout"


class ToolError(BaseModel):
    """Why a tool call failed.

    Attributes:
        error_type: The kind of failure.
        message: One sentence.
    """

    model_config = ConfigDict(extra="forbid")

    error_type: ToolErrorType = Field(description="Kind of failure")
    message: str = Field(description="What happened")


class ListToolsAction(Action):
    """Asks for the tools of the environment."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Calls one tool.

    Attributes:
        tool_name: Name of the tool.
        arguments: Its arguments by name.
    """

    type: Literal["call_tool"] = "call_tool"
    tool_name: str = Field(description="Name of the tool")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments by name")


class ListToolsObservation(Observation):
    """Answers `ListToolsAction`.

    Attributes:
        tools: The tools on offer.
    """

    tools: list[Tool] = Field(description="The tools on offer")


class CallToolObservation(Observation):
    """Answers `CallToolAction`.

    Attributes:
        tool_name: The tool that was called.
        result: What it returned; None after an error.
        error: Why there is no result; None on success.
    """

    tool_name: str = Field(description="The tool that was called")
    result: Any = Field(default=None, description="What the tool returned")
    error: ToolError | None = Field(default=None, description="Why there is no result")
