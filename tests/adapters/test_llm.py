"""Clients of language models, against a server on loopback that keeps what it was sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from openenv.core.llm_client import (
    AnthropicClient,
    LLMClient,
    LLMResponse,
    OpenAIClient,
    ToolCall,
    create_llm_client,
)

from openenv_sandbox.errors import AuthError, ConfigError, ProviderError, RateLimited, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
TOOLS = [
    {"name": "add", "description": "Add.", "inputSchema": {"title": "x", "properties": {"a": {"type": "integer"}}}}
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
KEY = "sk-secret-value"


class Service:
    """Answers every POST with ``reply`` and keeps the requests."""

    def __init__(self) -> None:
        self.reply: tuple[int, Any] = (200, {})
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                service.seen.append((self.path, dict(self.headers.items()), body))
                status, answer = service.reply
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("retry-after", "7")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def chat(content: str | None, *calls: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, "tool_calls": list(calls)}}]}


async def test_openai_sends_the_conversation_and_reads_tool_calls(service: Service) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    service.reply = 200, chat(None, call)
    client = OpenAIClient("http://127.0.0.1", service.port, "m", KEY, "be brief", 0.5, 9)
    answer = await client.complete_with_tools([{"role": "user", "content": "1+?"}], TOOLS, top_p=0.9)
    assert answer == LLMResponse("", [ToolCall("c1", "add", {"a": 1})])
    path, headers, body = service.seen[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["temperature"], body["max_tokens"], body["top_p"]) == (0.5, 9, 0.9)
    assert body["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}
    ]
    assert json.loads(answer.to_message_dict()["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


async def test_complete_is_the_text_and_newer_models_get_the_limit_by_its_newer_name(service: Service) -> None:
    service.reply = 200, chat("four")
    client = OpenAIClient("http://127.0.0.1", service.port, "m", use_max_completion_tokens=True)
    assert await client.complete("2+2") == "four"
    _, headers, body = service.seen[0]
    assert "authorization" not in headers
    assert "tools" not in body
    assert body["max_completion_tokens"] == 256
    assert "max_tokens" not in body


async def test_anthropic_gets_alternating_turns_with_tool_results(service: Service) -> None:
    service.reply = (
        200,
        {
            "content": [
                {"type": "text", "text": "so "},
                {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 2}},
            ]
        },
    )
    client = AnthropicClient("http://127.0.0.1", service.port, "m", KEY)
    before = LLMResponse("hm", [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "add", {"a": 2})]).to_message_dict()
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"},
        before,
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "name": "add", "content": "2"},
    ]
    answer = await client.complete_with_tools(messages, TOOLS)
    assert answer == LLMResponse("so ", [ToolCall("t", "add", {"a": 2})])
    path, headers, body = service.seen[0]
    assert (path, headers["x-api-key"], body["system"]) == ("/v1/messages", KEY, "be brief")
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["c1", "c2"]
    assert body["tools"] == [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((401, {"error": f"bad key {KEY}"}), AuthError),
        ((429, {}), RateLimited),
        ((500, {}), ProviderError),
        ((200, {"choices": []}), ProviderError),
        ((200, b"<html>"), ProviderError),
        ((200, chat("", {"id": "c", "function": {"name": "add", "arguments": "{"}})), ProviderError),
    ],
)
async def test_a_failure_is_an_error_without_the_key(
    service: Service, reply: tuple[int, Any], error: type[ProviderError]
) -> None:
    service.reply = reply
    client = OpenAIClient("http://127.0.0.1", service.port, "m", KEY)
    with pytest.raises(error) as caught:
        await client.complete("x")
    assert type(caught.value) is error
    assert KEY not in str(caught.value) + repr(client)
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after == 7.0


async def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(ProviderError, match=r"http://127.0.0.1:9 could not be reached") as caught:
        await OpenAIClient("http://127.0.0.1", 9, "m").complete("x")
    assert caught.value.retryable


async def test_a_client_of_ones_own_needs_complete_alone() -> None:
    class Fixed(LLMClient):
        async def complete(self, prompt: str, **kwargs: Any) -> str:
            return prompt.upper()

    client = Fixed("http://host/prefix", 80)
    assert client.base_url == "http://host:80/prefix"
    assert await client.complete("a") == "A"
    with pytest.raises(UsageError, match="Fixed has no tool calls"):
        await client.complete_with_tools([], [])


def test_hosted_services_by_name() -> None:
    client = create_llm_client("anthropic", "m", KEY, max_tokens=7)
    assert isinstance(client, AnthropicClient)
    assert (client.base_url, client.max_tokens) == ("https://api.anthropic.com:443", 7)
    assert isinstance(create_llm_client("OpenAI", "m", KEY), OpenAIClient)
    with pytest.raises(ConfigError, match="no provider 'x'"):
        create_llm_client("x", "m", KEY)
