"""Clients of language models."""

from openenv_sandbox.llm import AnthropicClient as AnthropicClient
from openenv_sandbox.llm import LLMClient as LLMClient
from openenv_sandbox.llm import LLMResponse as LLMResponse
from openenv_sandbox.llm import OpenAIClient as OpenAIClient
from openenv_sandbox.llm import ToolCall as ToolCall
from openenv_sandbox.llm import create_llm_client as create_llm_client

__all__ = [
    "AnthropicClient",
    "LLMClient",
    "LLMResponse",
    "OpenAIClient",
    "ToolCall",
    "create_llm_client",
]
