"""A policy that asks nobody: it calls the first tool with the simplest arguments that its schema allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.harness.types import ModelStepResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.harness.types import Message
    from openenv_sandbox.models import Tool

_PLAIN: dict[str, Any] = {"integer": 0, "number": 0.0, "boolean": False, "string": "", "null": None}


def scripted_step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
    """One call of the first tool; where there is no tool, a text."""
    from openenv_sandbox.llm import LLMResponse, ToolCall

    if not tools:
        return ModelStepResult(response=LLMResponse("there is no tool"))
    number = sum(message["role"] == "assistant" for message in messages)
    call = ToolCall(f"call-{number}", tools[0].name, simplest(tools[0].input_schema) or {})
    return ModelStepResult(response=LLMResponse("", [call]))


def simplest(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """The simplest value of a JSON schema: a default, the first choice, the least number, an empty list.

    Args:
        schema: Of the value.
        root: Where references point into; None for ``schema`` itself.
    """
    root = schema if root is None else root
    if "$ref" in schema:
        found: Any = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found[part]
        return simplest(found, root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return simplest(schema[key][0], root)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        fields = schema.get("properties", {})
        return {name: simplest(fields.get(name, {}), root) for name in schema.get("required", ())}
    if kind == "array":
        return [simplest(schema.get("items", {}), root) for _ in range(schema.get("minItems", 0))]
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    if kind == "string":
        return "x" * schema.get("minLength", 0)
    return _PLAIN.get(str(kind))
