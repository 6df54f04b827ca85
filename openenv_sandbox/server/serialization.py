"""Observations to plain data and plain data to actions, for code that has no server at hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from openenv_sandbox.models import Action, CallToolAction, ListToolsAction
from openenv_sandbox.wire import codec, messages

if TYPE_CHECKING:
    from openenv_sandbox.models import Observation

ActionT = TypeVar("ActionT", bound=Action)

_GENERAL = (Action, CallToolAction, ListToolsAction)


def serialize_observation(observation: Observation) -> dict[str, Any]:
    """The envelope in which an observation travels, as JSON types.

    Args:
        observation: Dumped by its own class.

    Returns:
        ``observation``, ``reward``, ``done``, and ``metadata`` when it is not empty.

    Raises:
        SerializationError: A field has no JSON form; the message names it.
    """
    envelope: dict[str, Any] = codec.loads(codec.dumps(messages.envelope(codec.fields_of(observation))))
    return envelope


def deserialize_action(action_data: Mapping[str, Any], action_cls: type[ActionT]) -> ActionT:
    """The action that plain data stands for.

    Tool calls (``type`` is ``call_tool`` or ``list_tools``) are understood where the class is a general one.

    Args:
        action_data: The fields.
        action_cls: What they are validated as.

    Raises:
        pydantic.ValidationError: They are no such action.
    """
    if action_cls in _GENERAL and isinstance(action_data, Mapping):
        kind = action_data.get("type")
        if kind == "call_tool":
            return cast("ActionT", CallToolAction.model_validate(action_data))
        if kind == "list_tools":
            return cast("ActionT", ListToolsAction.model_validate(action_data))
    return action_cls.model_validate(action_data)


def deserialize_action_with_preprocessing(action_data: Mapping[str, Any], action_cls: type[ActionT]) -> ActionT:
    """Like `deserialize_action`, for data from a web form, whose values are text.

    ``arguments`` of a tool call may be JSON text, ``tokens`` a JSON list (a tensor where torch is loaded already),
    ``action_id`` digits.

    Args:
        action_data: The fields.
        action_cls: What they are validated as.

    Raises:
        ValueError: A text that should be JSON is none.
        pydantic.ValidationError: The fields are no such action.
    """
    if not isinstance(action_data, Mapping):
        return deserialize_action(action_data, action_cls)  # refuses it
    fields = dict(action_data)
    if fields.get("type") == "call_tool" and isinstance(fields.get("arguments"), str):
        fields["arguments"] = _parsed(fields["arguments"], "arguments") if fields["arguments"].strip() else {}
    if "tokens" in fields:
        fields["tokens"] = _tokens(fields["tokens"], action_cls)
    identifier = fields.get("action_id")
    if isinstance(identifier, str) and identifier.strip().lstrip("+-").isdecimal():
        fields["action_id"] = int(identifier)
    return deserialize_action(fields, action_cls)


def _tokens(value: Any, action_cls: type[Action]) -> Any:
    if isinstance(value, str):
        value = _parsed(value, "tokens") if value.strip() else []
    field = action_cls.model_fields.get("tokens")
    torch = sys.modules.get("torch")  # a field of that type means that its package has imported it
    wants_tensor = field is not None and "Tensor" in str(field.annotation)
    return torch.tensor(value) if isinstance(value, list) and wants_tensor and torch is not None else value


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
