"""Clients of language models, over plain HTTP: no SDK is needed."""

from __future__ import annotations

from openenv_sandbox.llm.clients import AnthropicClient, OpenAIClient, create_llm_client
from openenv_sandbox.llm.messages import LLMClient, LLMResponse, ToolCall

__all__ = ["AnthropicClient", "LLMClient", "LLMResponse", "OpenAIClient", "ToolCall", "create_llm_client"]
