"""What forms are generated from: schemas of actions, of the arguments of reset, and the older list of fields."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, create_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.models import Action

logger = logging.getLogger("openenv.server")

LONG_TEXT = ("message", "code")
"""Parts of names of fields that get more than one line."""


def action_schema(action_cls: type[Action]) -> dict[str, Any] | None:
    """JSON schema of an action without its metadata; None where it has none, such as with a tensor in it."""
    try:
        schema = action_cls.model_json_schema()
    except Exception as error:  # pydantic's own, and whatever an author's schema hook raises
        logger.debug("%s has no JSON schema", action_cls.__name__, exc_info=error)
        return None
    properties = schema.get("properties", {})
    properties.pop("metadata", None)
    return schema


def reset_schema(cls: type | None) -> dict[str, Any]:
    """JSON schema of what a class's reset takes; seed and episode_id where the class is not known before it is built.

    ``additionalProperties`` tells whether it takes any further argument.
    """
    function = _reset_of(cls)
    if function is None:
        fields: dict[str, Any] = {"seed": (int | None, None), "episode_id": (str | None, None)}
        return {**_schema(fields), "additionalProperties": True}
    parameters = [p for name, p in inspect.signature(function).parameters.items() if name != "self"]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    fields = {}
    for parameter in named:
        if not parameter.name.startswith("_"):
            fields[parameter.name] = (_annotation(function, parameter), _default(parameter))
    return {**_schema(fields), "additionalProperties": anything}


def _reset_of(cls: type | None) -> Any:
    from openenv_sandbox.server.environment import Environment

    if cls is None:
        return None
    own = getattr(cls, "reset_async", None)
    return own if own is not None and own is not Environment.reset_async else getattr(cls, "reset", None)


def _annotation(function: Any, parameter: inspect.Parameter) -> Any:
    if not isinstance(parameter.annotation, str):
        return Any if parameter.annotation is parameter.empty else parameter.annotation
    try:
        hints = inspect.get_annotations(function, eval_str=True)
    except Exception:  # a name that only type checkers see
        return Any
    return hints.get(parameter.name, Any)


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is parameter.empty else parameter.default


def _schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
    try:
        model: Any = create_model("Reset", __config__=config, **fields)
        return dict(model.model_json_schema())
    except Exception as error:  # a type or default without a JSON schema: its form takes JSON
        logger.debug("the arguments of reset have no JSON schema", exc_info=error)
        return {"type": "object", "properties": {name: {"title": name} for name in fields}}


def is_chat(action_cls: type[Action]) -> bool:
    """Whether actions are tokens of a chat, in a tensor."""
    field = action_cls.model_fields.get("tokens")
    return field is not None and "Tensor" in str(field.annotation)


def action_fields(action_cls: type[Action]) -> list[dict[str, Any]]:
    """The fields of an action one by one, as functions that build a page of their own get them.

    Each has name, type (checkbox, number, text, textarea, select, tensor), required, description, default_value,
    choices, min_value, max_value, min_length, max_length, pattern, placeholder and help_text.
    """
    schema = action_schema(action_cls) or {}
    required = schema.get("required", [])
    return [_field(name, found, name in required) for name, found in schema.get("properties", {}).items()]


def _field(name: str, schema: Mapping[str, Any], required: bool) -> dict[str, Any]:
    words = name.replace("_", " ")
    description = schema.get("description", "")
    return {
        "name": name,
        "type": _input(name, schema),
        "required": required,
        "description": description,
        "default_value": schema.get("default"),
        "choices": schema.get("enum"),
        "min_value": schema.get("minimum"),
        "max_value": schema.get("maximum"),
        "min_length": schema.get("minLength"),
        "max_length": schema.get("maxLength"),
        "pattern": schema.get("pattern"),
        "placeholder": "1, 2, 3" if "tokens" in name.lower() else words,
        "help_text": description or words.capitalize(),
    }


def _input(name: str, schema: Mapping[str, Any]) -> str:
    if "tokens" in name.lower():
        return "tensor"
    if "enum" in schema:
        return "select"
    kind = schema.get("type")
    if kind == "boolean":
        return "checkbox"
    if kind in ("integer", "number"):
        return "number"
    long = schema.get("maxLength", 0) > 100 or any(part in name.lower() for part in LONG_TEXT)
    return "textarea" if kind == "string" and long else "text"
