"""What answers, and what configures, may be broken in any way: the error is ours, says why, and holds no secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.client import EnvClient, GenericEnvClient
from openenv_sandbox.client.core import drive
from openenv_sandbox.client.rpc import Rpc, RpcError
from openenv_sandbox.client.target import resolve
from openenv_sandbox.errors import ConfigError, ConnectError, ProtocolError

from .harness import EnvServer
from .proxies import FaultyProxy

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

pytestmark = pytest.mark.anyio

SECRET = "hunter2-canary"


@pytest.mark.parametrize("length", [b"\xb2", b"1" * 5000, b"-5", b"1_0"])
async def test_a_content_length_that_is_no_number(length: bytes) -> None:
    """Mutation: int() of whatever str.isdigit() lets pass"""
    with FaultyProxy(None, answer=b"HTTP/1.1 503 Busy\r\nContent-Length: " + length + b"\r\n\r\nfull") as edge:
        with pytest.raises(ConnectError, match="503 Busy: full"):
            await GenericEnvClient(edge.url).connect()
        with pytest.raises(ConnectError, match="503 Busy: full"):
            GenericEnvClient(edge.url).sync().connect()


@pytest.mark.parametrize(
    "reply",
    [
        "[" * 100_000,
        "[1]",
        '{"type": ["observation"]}',
        '{"type": "observation", "data": "text"}',
        '{"type": "observation"}',
        '{"type": "error", "data": [1]}',
        '{"type": "error", "data": {"code": [1], "message": {"a": 1}}}',
    ],
)
async def test_a_reply_of_another_shape_is_a_protocol_error_and_no_result(reply: str) -> None:
    """An observation that nobody sent would count as a step without a reward.

    Mutation: take an envelope that is no object for an empty one, or let codec.loads raise RecursionError
    """

    async def answer(server: EnvServer, ws: ServerConnection) -> None:
        async for _ in ws:
            await ws.send(reply)

    with EnvServer(answer) as server:
        async with GenericEnvClient(server.url) as client:
            with pytest.raises(ProtocolError):
                await client.reset()
        with GenericEnvClient(server.url).sync() as blocking, pytest.raises(ProtocolError):
            blocking.reset()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": "quota exceeded"}', "quota exceeded"),
        (b'{"error": {"code": "limit", "message": "no more"}}', "no more"),
        (b'{"error": {"code": [1], "data": [2]}}', "unknown error"),
        (b'{"error": {"code": 1e400}}', "unknown error"),
        (b"[" * 100_000, ""),
        (b"[1]", ""),
        (b"\xff", ""),
    ],
)
def test_json_rpc_answered_by_something_else(body: bytes, text: str) -> None:
    """Mutation: take ``error`` for an object and its code for a number"""
    with FaultyProxy(None, answer=b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as edge:
        rpc = Rpc(edge.url, resolve(edge.url, headers={}), 5, 5)
        kind: type[Exception] = RpcError if text else ConnectError
        with pytest.raises(kind, match=text or "no JSON-RPC"):
            drive(rpc.call("tools/list", {}, blocking=True))
        drive(rpc.aclose())


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@host:bad",
        f"http://user:{SECRET}/@host",
        f"http://user:{SECRET}?x@host",
        f"ftp://user:{SECRET}@host",
        f"http://user:{SECRET}@",
        f"user:{SECRET}@[host",
        "http://",
        "http://two words",
    ],
)
def test_an_address_that_is_none_keeps_its_password(url: str) -> None:
    """Mutation: quote base_url as it is"""
    with pytest.raises(ConfigError, match="is not an address") as caught:
        EnvClient(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("proxy", ["http://proxy:port", f"http://u:{SECRET}@proxy:99999", f"http://u:{SECRET}@[x"])
def test_a_proxy_that_is_no_address_is_named_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """Mutation: read the port of the proxy's URL without a net"""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ConnectError, match="proxy cannot be used") as caught:
        resolve("http://env.example", headers={})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "headers", [{"X-Key": "€"}, {"X-Key": "a\x01"}, {"X\0Key": "a"}, {"X(Key)": "a"}, {"X-Kéy": "a"}, {"": "a"}]
)
def test_headers_that_would_not_arrive_as_they_are_are_refused(headers: dict[str, str]) -> None:
    """Mutation: look for line ends alone; the rest is replaced by question marks on its way"""
    with pytest.raises(ConfigError, match="a character that is not allowed"):
        EnvClient("http://localhost", headers=headers)


def test_a_path_is_encoded_once(server: EnvServer) -> None:
    """Mutation: send path and query as they stand"""
    assert resolve("http://h/a%20b?c=%2F", headers={}).path == "/a%20b/ws?c=%2F"
    with GenericEnvClient(server.url + "/caf\u00e9 1?q=\u65e5 x").sync() as client:
        client.reset()
    assert server.paths == ["/caf%C3%A9%201/ws?q=%E6%97%A5%20x"]
    assert json.dumps(server.seen[0]) == '{"type": "reset", "data": {}}'
