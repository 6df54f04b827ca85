"""What goes to a model and comes back, in the two forms that services speak."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SCHEMA_KEYS = ("type", "properties", "required", "additionalProperties", "$defs", "description")


@dataclass
class ToolCall:
    """A tool that the model wants called.

    Attributes:
        id: Ties the answer to the call.
        name: Name of the tool.
        args: Its arguments by name.
    """

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """What a model answered.

    Attributes:
        content: Its text.
        tool_calls: The tools it wants called, in order.
    """

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """The answer as a message of the conversation, in the form of OpenAI's chat API."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.args)}}
                for call in self.tool_calls
            ]
        return message


class LLMClient(ABC):
    """Asks a model; subclasses implement ``complete`` and, where the model can, ``complete_with_tools``.

    Args:
        endpoint: Scheme and host, such as ``http://localhost``; a path is kept.
        port: Port of the service.
    """

    def __init__(self, endpoint: str, port: int) -> None:
        self.endpoint = endpoint
        self.port = port

    @property
    def base_url(self) -> str:
        """Address of the service."""
        scheme, separator, rest = self.endpoint.rstrip("/").rpartition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}{separator}{host}:{self.port}{slash}{path}"

    @abstractmethod
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """The model's answer to a prompt.

        Args:
            prompt: The text.
            **kwargs: Further fields of the request, such as ``temperature``.
        """

    async def complete_with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """The model's answer to a conversation in which it may call tools.

        Args:
            messages: The conversation in the form of OpenAI's chat API.
            tools: The tools as MCP lists them: name, description, inputSchema.
            **kwargs: Further fields of the request.

        Raises:
            UsageError: This client has no tool calls.
        """
        raise UsageError(f"{type(self).__name__} has no tool calls", hint="override complete_with_tools")


def clean_mcp_schema(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON schema of a tool's arguments as model services take it: an object, without foreign keys at the top."""
    cleaned = {key: value for key, value in (schema or {}).items() if key in _SCHEMA_KEYS}
    cleaned["type"] = "object"
    cleaned.setdefault("properties", {})
    return cleaned


def _parts(tool: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    schema = tool.get("inputSchema", tool.get("input_schema"))
    return str(tool["name"]), str(tool.get("description") or ""), clean_mcp_schema(schema)


def mcp_tools_to_openai(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as MCP lists them, in the form of OpenAI's chat API."""
    parts = map(_parts, tools)
    return [
        {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
        for name, about, schema in parts
    ]


def mcp_tools_to_anthropic(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as MCP lists them, in the form of Anthropic's messages API."""
    return [{"name": name, "description": about, "input_schema": schema} for name, about, schema in map(_parts, tools)]


def openai_messages_to_anthropic(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """A conversation of OpenAI's chat API in the form of Anthropic's messages API.

    Returns:
        The system prompt, and the messages; neighbours of one role are joined, as that API wants them to alternate.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = message["role"], _text_blocks(message.get("content"))
        if role == "system":
            system += [block["text"] for block in blocks if block["type"] == "text"]
            continue
        if role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": blocks}
            role, blocks = "user", [result]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            used = {"type": "tool_use", "id": call["id"], "name": function["name"]}
            blocks.append({**used, "input": arguments_of(function.get("arguments"))})
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(system), turns


def _text_blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [dict(block) for block in content or ()]


def arguments_of(text: Any) -> dict[str, Any]:
    """The arguments of a call, which travel as JSON text.

    Raises:
        ValueError: The text is no JSON object.
    """
    value = json.loads(text) if isinstance(text, str) and text.strip() else text or {}
    if not isinstance(value, dict):
        raise ValueError(f"arguments of a tool call are a JSON object, not {value!r}")
    return value
