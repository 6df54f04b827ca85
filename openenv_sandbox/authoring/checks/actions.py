"""An action that fits a JSON Schema, as small as it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DEPTH = 8


def example(schema: Mapping[str, Any]) -> Any:
    """The least value a schema describes: defaults and required fields alone.

    Args:
        schema: As pydantic writes it, with ``$defs``.
    """
    return _value(schema, schema, 0)


def variants(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The least value and some beside it, which differ in the numbers of required fields.

    An episode with one action over and over shows little.

    Args:
        schema: Of an object.
    """
    least = example(schema)
    if not isinstance(least, dict):
        return [{}]
    fields = schema.get("properties") or {}
    numbers = {
        name: fields[name]
        for name, value in least.items()
        if type(value) in (int, float) and name in fields and set(fields[name]) <= _PLAIN
    }
    found = [least]
    for step in (1, 10, 50, 90) if numbers else ():
        other = dict(least)
        for name, field in numbers.items():
            value = type(least[name])(least[name] + step)
            other[name] = value if value <= field.get("maximum", value) else least[name]
        if other not in found:
            found.append(other)
    return found


_PLAIN = frozenset({"type", "title", "description", "minimum", "exclusiveMinimum", "maximum"})
"""What a number's schema may say for other numbers to fit it too."""


def _value(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if depth > DEPTH:
        return None
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _value((root.get("$defs") or root.get("definitions") or {}).get(name, {}), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            options = [one for one in schema[key] if one.get("type") != "null"] or schema[key]
            return _value(options[0], root, depth + 1)
    kind = schema.get("type")
    return _OF_TYPE[kind](schema, root, depth) if kind in _OF_TYPE else {}


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    fields = schema.get("properties") or {}
    return {name: _value(fields.get(name, {}), root, depth + 1) for name in schema.get("required") or ()}


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    first = list(schema.get("prefixItems") or ())
    count = max(int(schema.get("minItems") or 0), len(first))
    items = [*first, *[schema.get("items") or {}] * (count - len(first))]
    return [_value(item, root, depth + 1) for item in items]


def _number(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    whole = schema.get("type") == "integer"
    low = schema.get("minimum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1) - 1)
    value = low if low is not None else min(0, high) if "maximum" in schema or "exclusiveMaximum" in schema else 0
    step = schema.get("multipleOf")
    if step:
        value = -(-value // step) * step
    return int(value) if whole else float(value)


def _text(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    return "a" * int(schema.get("minLength") or 1)


_OF_TYPE: dict[Any, Any] = {
    "object": _object,
    "array": _array,
    "integer": _number,
    "number": _number,
    "string": _text,
    "boolean": lambda *_: False,
    "null": lambda *_: None,
}
