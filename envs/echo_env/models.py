"""What an echo environment shows, in a form that is easy to use."""

from __future__ import annotations

from typing import Any

from openenv_sandbox.models import Observation, Tool, ToolError


class EchoObservation(Observation):
    """The answer to a reset, a tool call or a listing; what does not apply is None.

    Attributes:
        echoed_message: The greeting of a reset.
        tool_name: The tool that was called.
        result: The value it returned.
        error: Why there is no result.
        raw_result: The result as it travelled: content blocks, structured content and data.
        tools: The tools on offer, after `ListToolsAction`.
    """

    echoed_message: str | None = None
    tool_name: str | None = None
    result: Any = None
    error: ToolError | None = None
    raw_result: dict[str, Any] | None = None
    tools: list[Tool] | None = None

    @classmethod
    def from_wire(cls, payload: dict[str, Any]) -> EchoObservation:
        """Read an envelope of this server, or of an echo server of an earlier release."""
        fields = dict(payload.get("observation") or {})
        metadata = fields.get("metadata") or payload.get("metadata") or {}
        raw = fields.get("result")
        known = {name: fields[name] for name in ("tool_name", "error", "tools", "echoed_message") if name in fields}
        if known.get("echoed_message") is None:
            known["echoed_message"] = metadata.get("message")
        return cls(
            done=bool(payload.get("done", False)),
            reward=payload.get("reward"),
            metadata=metadata,
            result=raw.get("data") if isinstance(raw, dict) and "data" in raw else raw,
            raw_result=raw if isinstance(raw, dict) else None,
            **known,
        )
