"""The two services."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from openenv_sandbox import redact
from openenv_sandbox.errors import AuthError, ConfigError, ProviderError, RateLimited
from openenv_sandbox.llm.messages import (
    LLMClient,
    LLMResponse,
    ToolCall,
    arguments_of,
    mcp_tools_to_anthropic,
    mcp_tools_to_openai,
    openai_messages_to_anthropic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

TIMEOUT_S = 120.0
"""Longest wait for an answer, in seconds."""

_HOSTS = {"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com"}
_ANTHROPIC_VERSION = "2023-06-01"


class _HttpClient(LLMClient):
    """One request for each answer; usable from any event loop."""

    service: str
    path: str

    def __init__(
        self,
        endpoint: str,
        port: int,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
    ) -> None:
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        self._api_key = api_key
        if api_key:
            redact.register(api_key)

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """The model's answer to a prompt. Raises what `complete_with_tools` raises."""
        return (await self.complete_with_tools([{"role": "user", "content": prompt}], [], **kwargs)).content

    async def complete_with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """The model's answer to a conversation in which it may call tools.

        Args:
            messages: The conversation in the form of OpenAI's chat API.
            tools: The tools as MCP lists them: name, description, inputSchema.
            **kwargs: Further fields of the request; they win over the client's own.

        Raises:
            AuthError: The key was refused.
            RateLimited: Too many requests; carries ``retry_after``.
            ProviderError: The service failed, could not be reached, or answered something else.
        """
        if self.system_prompt and not any(message["role"] == "system" for message in messages):
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        answer = await self._post({**self._request(messages, tools), **kwargs})
        try:
            return self._read(answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ProviderError(
                f"{self.service} answered in an unknown form: {error!r}", provider=self.service
            ) from error

    async def _post(self, body: dict[str, Any]) -> Any:
        import httpx

        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
                reply = await http.post(self.base_url + self.path, json=body, headers=self._headers())
        except httpx.HTTPError as error:
            text = f"{self.service} at {self.base_url} could not be reached: {type(error).__name__} {error}"
            raise ProviderError(text, provider=self.service, retryable=True) from error
        if reply.status_code >= 400:
            raise self._refused(reply)
        try:
            return reply.json()
        except ValueError as error:
            raise ProviderError(f"{self.service} answered what is no JSON", provider=self.service) from error

    def _refused(self, reply: httpx.Response) -> ProviderError:
        text = redact.mask(f"{self.service} answered {reply.status_code}: {reply.text[:500]}")
        if reply.status_code in (401, 403):
            return AuthError(text, provider=self.service, hint="check the api_key")
        if reply.status_code == 429:
            wait = reply.headers.get("retry-after", "")
            return RateLimited(text, provider=self.service, retry_after=float(wait) if wait.isdecimal() else None)
        return ProviderError(text, provider=self.service, retryable=reply.status_code >= 500)

    @abstractmethod
    def _headers(self) -> dict[str, str]: ...

    @abstractmethod
    def _request(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]: ...

    @abstractmethod
    def _read(self, answer: Any) -> LLMResponse: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model} at {self.base_url}>"


class OpenAIClient(_HttpClient):
    """OpenAI's chat API, which vLLM, Ollama and many others serve too.

    Args:
        endpoint: Scheme and host; a path before ``/v1`` is kept.
        port: Port of the service.
        model: Name of the model.
        api_key: Sent as bearer token; None sends none.
        system_prompt: Put before conversations that have none.
        temperature: Of the sampling.
        max_tokens: Longest answer.
        use_max_completion_tokens: Send the limit by the name that newer models want.
    """

    service = "openai"
    path = "/v1/chat/completions"

    def __init__(
        self,
        endpoint: str,
        port: int,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        use_max_completion_tokens: bool = False,
    ) -> None:
        super().__init__(endpoint, port, model, api_key, system_prompt, temperature, max_tokens)
        self._limit_name = "max_completion_tokens" if use_max_completion_tokens else "max_tokens"

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def _request(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": self.temperature,
            self._limit_name: self.max_tokens,
        }
        return {**body, "tools": mcp_tools_to_openai(tools)} if tools else body

    def _read(self, answer: Any) -> LLMResponse:
        message = answer["choices"][0]["message"]
        calls = [
            ToolCall(call["id"], call["function"]["name"], arguments_of(call["function"].get("arguments")))
            for call in message.get("tool_calls") or ()
        ]
        return LLMResponse(message.get("content") or "", calls)


class AnthropicClient(_HttpClient):
    """Anthropic's messages API.

    Args:
        endpoint: Scheme and host.
        port: Port of the service.
        model: Name of the model.
        api_key: Sent as ``x-api-key``; None sends none.
        system_prompt: Used for conversations that have none.
        temperature: Of the sampling.
        max_tokens: Longest answer.
    """

    service = "anthropic"
    path = "/v1/messages"

    def _headers(self) -> dict[str, str]:
        key = {"x-api-key": self._api_key} if self._api_key else {}
        return {"anthropic-version": _ANTHROPIC_VERSION, **key}

    def _request(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        system, turns = openai_messages_to_anthropic(messages)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": turns,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        if system:
            body["system"] = system
        return {**body, "tools": mcp_tools_to_anthropic(tools)} if tools else body

    def _read(self, answer: Any) -> LLMResponse:
        blocks = answer["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [
            ToolCall(block["id"], block["name"], arguments_of(block.get("input")))
            for block in blocks
            if block["type"] == "tool_use"
        ]
        return LLMResponse(text, calls)


def create_llm_client(
    provider: str,
    model: str,
    api_key: str,
    *,
    system_prompt: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
) -> LLMClient:
    """A client of a hosted service.

    Args:
        provider: ``openai`` or ``anthropic``.
        model: Name of the model.
        api_key: The key.
        system_prompt: Put before conversations that have none.
        temperature: Of the sampling.
        max_tokens: Longest answer.

    Raises:
        ConfigError: There is no such provider.
    """
    kinds: dict[str, type[_HttpClient]] = {"openai": OpenAIClient, "anthropic": AnthropicClient}
    kind = kinds.get(provider.lower())
    if kind is None:
        raise ConfigError(f"no provider {provider!r}", hint=f"one of {', '.join(sorted(kinds))}")
    host = _HOSTS[provider.lower()]
    return kind(host, 443, model, api_key, system_prompt, temperature, max_tokens)
