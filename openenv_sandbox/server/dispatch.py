"""Messages of ``/ws``: bytes to what is asked, and results to bytes. No I/O and no waiting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openenv_sandbox.errors import EnvironmentError_, SerializationError
from openenv_sandbox.models import Action, CallToolAction, ListToolsAction
from openenv_sandbox.wire import codec, limits, messages

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("openenv.server")

FAIL, END = "fail", "end"
"""Kinds that `Dispatcher.decode` adds to the message types: answer with this frame; answer with it and end."""

QUOTED = 64 * 1024
"""Bytes of a message up to which its validation errors quote what they are about: each missing field quotes all."""

EXCERPT = 500
"""Characters that are left of the text of an error that is itself over the limit."""

Request = tuple[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Reset(_Strict):
    type: Literal["reset"]
    data: dict[str, Any] = Field(default_factory=dict)


class _Step(_Strict):
    type: Literal["step"]
    data: dict[str, Any]


class _State(_Strict):
    type: Literal["state"]


class _Close(_Strict):
    type: Literal["close"]


class _Mcp(_Strict):
    type: Literal["mcp"]
    data: dict[str, Any]


_SHAPES: dict[str, type[_Strict]] = {
    messages.RESET: _Reset,
    messages.STEP: _Step,
    messages.STATE: _State,
    messages.CLOSE: _Close,
    messages.MCP: _Mcp,
}


class Dispatcher:
    """Reads and writes the messages of one application.

    Args:
        action_cls: What the data of a step is validated as.
        max_message: Most bytes of one message, in either direction.
    """

    def __init__(self, action_cls: type[Action], max_message: int) -> None:
        self.max_message = max_message
        self._validate: Callable[[Any], Any] = action_cls.model_validate
        self.tool_actions = action_cls in (Action, CallToolAction, ListToolsAction)

    def decode(self, payload: bytes | str) -> Request:
        """What a message asks for: its type and data, with the action of a step validated."""
        try:
            message = codec.loads(payload)
        except ValueError as error:
            return FAIL, messages.error(messages.INVALID_JSON, f"Invalid JSON: {error}")
        if type(message) is not dict:
            text = f"'{type(message).__name__}' object has no attribute 'get'"
            return END, messages.error(messages.SESSION_ERROR, text)
        kind = message.get("type", "")
        data = message.get("data")
        try:
            if kind == messages.STEP:
                if len(message) != 2 or type(data) is not dict:
                    _Step.model_validate(message)
                return kind, self.action(data)
            if kind == messages.RESET and len(message) == 2 and type(data) is dict:
                return kind, data
            shape = _SHAPES.get(kind) if isinstance(kind, str) else None
            if shape is None:
                return FAIL, messages.error(messages.UNKNOWN_TYPE, f"Unknown message type: {kind}")
            return kind, getattr(shape.model_validate(message), "data", None)
        except ValidationError as error:
            return FAIL, invalid(error, quoting=len(payload) <= QUOTED)
        except Exception as error:  # a validator of the author's own that raises something else
            return FAIL, failure(error)

    def action(self, data: Any) -> Any:
        """The action that ``data`` stands for; tool calls are understood where the action class is a general one.

        Raises:
            ValidationError: It is none.
        """
        if self.tool_actions:
            kind = data.get("type")
            if kind == "list_tools":
                return ListToolsAction.model_validate(data)
            if kind == "call_tool":
                return CallToolAction.model_validate(data)
        return self._validate(data)

    def encode(self, kind: str, result: Any) -> bytes:
        """The answer to a reset, step or state."""
        try:
            if kind == messages.STATE:
                data: Any = None if result is None else codec.fields_of(result)
                frame = codec.dumps({"type": messages.STATE, "data": data})
            else:
                data = messages.envelope(codec.fields_of(result))
                frame = codec.dumps({"type": messages.OBSERVATION, "data": data})
        except SerializationError as error:
            return self.error(messages.error(messages.SERIALIZATION_ERROR, error.message.replace("'data.", "'", 1)))
        except Exception as error:  # a serializer of the author's own
            return self.error(failure(error))
        if len(frame) > self.max_message:
            return self.error(self.too_large(len(frame)))
        return frame

    def too_large(self, size: int) -> dict[str, Any]:
        """The error frame for a message of ``size`` bytes."""
        return messages.error(
            messages.MESSAGE_TOO_LARGE,
            limits.describe(size, self.max_message, limits.SERVER_SETTING),
            size=size,
            limit=self.max_message,
            setting=limits.SERVER_SETTING,
        )

    def error(self, frame: dict[str, Any]) -> bytes:
        """An error frame as bytes; one over the limit, such as an exception with a huge text, is cut."""
        raw = codec.dumps(frame)
        if len(raw) > self.max_message:
            raw = codec.dumps(messages.error(frame["data"]["code"], frame["data"]["message"][:EXCERPT]))
        return raw


def invalid(error: ValidationError, *, quoting: bool = True) -> dict[str, Any]:
    """The error frame for a message that does not validate; each of its errors quotes what it is about."""
    # Through pydantic's own JSON: the inputs and contexts of its errors may hold any object.
    errors = orjson.loads(error.json(include_input=quoting))
    return messages.error(messages.VALIDATION_ERROR, "Invalid message", errors=errors)


def failure(error: BaseException) -> dict[str, Any]:
    """The error frame for an environment that raised; its traceback stays in the log."""
    logger.debug("environment raised", exc_info=error)
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # an author's __str__
        text = name
    if not isinstance(error, Exception) and text:
        text = f"{name}: {text}"
    return messages.error(messages.EXECUTION_ERROR, text or name)


def refusal(error: Exception) -> dict[str, Any]:
    """The error frame for a session that could not be opened."""
    if isinstance(error, EnvironmentError_):
        return messages.error(error.code or messages.SESSION_ERROR, error.message, **error.data)
    return messages.error(messages.SESSION_ERROR, str(error) or type(error).__name__)
