"""Names and shapes of the messages on ``/ws``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

RESET, STEP, STATE, MCP, CLOSE, OBSERVATION, ERROR = "reset", "step", "state", "mcp", "close", "observation", "error"

INVALID_JSON = "INVALID_JSON"
UNKNOWN_TYPE = "UNKNOWN_TYPE"
VALIDATION_ERROR = "VALIDATION_ERROR"
EXECUTION_ERROR = "EXECUTION_ERROR"
SERIALIZATION_ERROR = "SERIALIZATION_ERROR"
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
"""A message is over the limit of the server, in either direction; ``size``, ``limit``, ``setting``."""
CAPACITY_REACHED = "CAPACITY_REACHED"
FACTORY_ERROR = "FACTORY_ERROR"
SESSION_ERROR = "SESSION_ERROR"

FATAL = frozenset((CAPACITY_REACHED, FACTORY_ERROR, SESSION_ERROR))
"""After one of these the server closes the connection with 1000; after any other the session goes on."""


def error(code: str, message: str, **extra: Any) -> dict[str, Any]:
    """An error frame."""
    return {"type": ERROR, "data": {"message": message, "code": code, **extra}}


def reset(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The request that starts an episode; ``data`` is always there."""
    return {"type": RESET, "data": dict(kwargs)}


def step(action: Any) -> dict[str, Any]:
    """The request for one step; the action's fields are not nested any further."""
    return {"type": STEP, "data": action}


def state() -> dict[str, Any]:
    """The request for the state; it must not carry ``data``."""
    return {"type": STATE}


def mcp(request: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-RPC request or response inside the session."""
    return {"type": MCP, "data": dict(request)}


def close() -> dict[str, Any]:
    """Asks the server to end the session; it answers with close 1000 and no frame."""
    return {"type": CLOSE}


def envelope(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an observation, in the form in which they travel.

    Args:
        fields: All fields of the observation; ``reward`` and ``done`` are taken out of it.

    Returns:
        ``observation``, ``reward``, ``done``, and a copy of ``metadata`` when it is not empty.
    """
    reward, done = fields.pop("reward", None), fields.pop("done", False)
    data: dict[str, Any] = {"observation": fields, "reward": reward, "done": done}
    metadata = fields.get("metadata")
    if metadata:
        data["metadata"] = metadata
    return data
