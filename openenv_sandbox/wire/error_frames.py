"""From an error frame to the error that fits its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import (
    ActionInvalid,
    CapacityError,
    EnvironmentError_,
    ExecutionError,
    FactoryError,
    ProtocolError,
    SerializationError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_BY_CODE: dict[str, type[EnvironmentError_]] = {
    "CAPACITY_REACHED": CapacityError,
    "FACTORY_ERROR": FactoryError,
    "VALIDATION_ERROR": ActionInvalid,
    "INVALID_JSON": ActionInvalid,
    "UNKNOWN_TYPE": ActionInvalid,
    "EXECUTION_ERROR": ExecutionError,
    "SERIALIZATION_ERROR": SerializationError,
}


def from_error_frame(data: Mapping[str, Any]) -> EnvironmentError_:
    """Turn the ``data`` of an error frame into the error that fits its code."""
    code = str(data.get("code") or "")
    text = str(data.get("message") or "unknown error")
    cls = _BY_CODE.get(code, ProtocolError)
    rest = {key: value for key, value in data.items() if key not in ("message", "code")}
    return cls(f"Server error: {text} (code: {code})", code=code, data=rest, hint=_HINTS.get(code) or _fields(rest))


_HINTS = {
    "FACTORY_ERROR": "the environment's constructor raised; the server's log has the traceback (client.sandbox.logs())",
}


def _fields(data: Mapping[str, Any]) -> str | None:
    """What is wrong with which field of a rejected message."""
    problems = data.get("errors")
    if not isinstance(problems, list):
        return None
    lines = [
        f"{'.'.join(map(str, item.get('loc', ()))) or 'message'}: {item.get('msg', 'invalid')}"
        for item in problems[:5]
        if isinstance(item, dict)
    ]
    return "; ".join(lines) or None
