"""Ways to a server: addresses, auth at the edge, proxies, TLS, and errors that say what answered."""

from __future__ import annotations

import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.client import EnvClient, GenericEnvClient
from openenv_sandbox.client.target import is_private, proxy_for, resolve
from openenv_sandbox.errors import ConfigError, ConnectError
from openenv_sandbox.provider import Endpoint

from .harness import EnvServer
from .proxies import FaultyProxy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LOGIN = (
    b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://login.example.com/?next=sandbox&token=abc123secret\r\n"
    b"Content-Length: 0\r\n\r\n"
)


async def both(url: str, **kwargs: Any) -> list[ConnectError]:
    """The error of either face."""
    errors = []
    with pytest.raises(ConnectError) as caught:
        await GenericEnvClient(url, **kwargs).connect()
    errors.append(caught.value)
    with pytest.raises(ConnectError) as caught:
        GenericEnvClient(url, **kwargs).sync().connect()
    errors.append(caught.value)
    assert errors[0].message == errors[1].message
    return errors


async def test_redirect_of_the_upgrade_is_an_auth_error(server: EnvServer) -> None:
    """A login redirect is not followed; the error says auth; with the header the way is open.

    Scenario: C06
    Mutation: headers are left out of upgrade_request, or refused() treats 3xx like any status
    """
    with FaultyProxy(server.port, need="x-preview-token: good", answer=LOGIN) as edge:
        for error in await both(edge.url):
            assert "auth" in error.message
            assert (error.status, error.retryable) == (307, False)
            assert "login.example.com" in error.message
            assert "abc123secret" not in str(error)
        async with GenericEnvClient(edge.url, headers={"X-Preview-Token": "good"}) as client:
            await client.reset()
        with GenericEnvClient(edge.url, headers={"X-Preview-Token": "good"}).sync() as blocking:
            blocking.reset()


async def test_header_on_every_path(server: EnvServer) -> None:
    """A missing or bad key fails at once as auth, never as a timeout.

    Scenario: C08
    Mutation: refused() for 401 is retryable
    """
    with FaultyProxy(server.port, need="authorization: bearer good") as edge:
        for headers in ({}, {"Authorization": "Bearer bad-token-value"}):
            for error in await both(edge.url, headers=headers):
                assert (error.status, error.retryable) == (401, False)
                assert "auth failed" in error.message
                assert "no key given" in error.message
                assert "bad-token-value" not in str(error)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("given", [False, True])
async def test_traffic_token_is_optional(server: EnvServer, private: bool, given: bool) -> None:
    """Public ways need no token and bear one; private ones want it, and 403 is explained.

    Scenario: C09
    Mutation: endpoint headers are not sent with the upgrade
    """
    forbidden = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
    with FaultyProxy(
        server.port, need="e2b-traffic-access-token: t0ken" if private else None, answer=forbidden
    ) as edge:
        if not private:
            edge.answer = None
        client = GenericEnvClient(edge.url)
        client._bind(Endpoint(edge.url, headers={"e2b-traffic-access-token": "t0ken"} if given else None))
        if private and not given:
            with pytest.raises(ConnectError, match="HTTP 403 Forbidden: refused; the token lacks access"):
                await client.connect()
        else:
            await client.reset()
            await client.close()


async def test_errors_say_what_answered(server: EnvServer) -> None:
    page = b"<html><style>x{}</style><h1>Bad\x07 gateway</h1>api_key=sk-123456789\x1b[31m</html>"
    answers = {
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n" % len(page) + page: (502, True, "Bad gateway"),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n": (404, False, "404"),
        b"HTTP/1.1 200 OK\r\n\r\nhello": (200, False, "no environment server: hello"),
    }
    for answer, (status, retryable, text) in answers.items():
        with FaultyProxy(None, answer=answer) as edge:
            for error in await both(edge.url):
                assert error.message.startswith(f"Failed to connect to ws://127.0.0.1:{edge.port}/ws: ")
                assert (error.status, error.retryable) == (status, retryable)
                assert text in error.message
                assert "sk-123456789" not in error.message
                assert not {"\x07", "\x1b", "<"} & set(error.message)
    for raw, text in ((b"SSH-2.0-OpenSSH_9\r\n\r\n", "does not speak HTTP"),):
        with FaultyProxy(None, answer=raw) as edge:
            assert all(text in error.message for error in await both(edge.url))
    assert isinstance((await both("http://127.0.0.1:1"))[0], ConnectionError)
    assert "Connection refused" in (await both("http://127.0.0.1:1"))[0].message


async def test_silence_is_bounded() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for error in await both(url, connect_timeout_s=0.1):
            assert "no answer within 0.1 s" in error.message


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_localhost_on_either_address(host: str) -> None:
    """A server on one loopback address is found by the name localhost.

    Scenario: E06
    Mutation: only the first address of getaddrinfo is tried
    """
    with EnvServer(host=host) as server:
        url = f"http://localhost:{server.port}"
        async with GenericEnvClient(url) as client:
            await client.reset()
        with GenericEnvClient(url).sync() as blocking:
            blocking.reset()


async def test_secrets_do_not_travel_in_clear_text(server: EnvServer) -> None:
    """Headers or a token over http to a public host are refused before anything is sent.

    Scenario: C11
    Mutation: refuse_cleartext returns for http
    """
    for url in ("http://env.example.com", "ws://8.8.8.8:8000"):
        client = GenericEnvClient(url, headers={"Authorization": "Bearer abcdef"})
        with pytest.raises(ConfigError, match="not encrypted") as caught:
            await client.connect()
        assert "abcdef" not in str(caught.value)
        token = GenericEnvClient(url)
        token._bind(Endpoint(url), token="abcdef")
        with pytest.raises(ConfigError, match="not encrypted"):
            token.sync().connect()
        assert resolve(url, headers={"a": "b"}, allow_insecure=True).headers == {"a": "b"}
        assert resolve(url, headers={}).scheme == "ws", "without secrets an address is the user's own choice"
        assert resolve(url.replace("http:", "https:").replace("ws:", "wss:"), headers={"a": "b"}).scheme == "wss"
    near = ("localhost", "127.0.0.1", "::1", "10.1.2.3", "192.168.1.1", "echo", "host.docker.internal", "env.svc")
    assert all(is_private(host) for host in near)
    assert not any(is_private(host) for host in ("8.8.8.8", "example.com", "2606:4700::1"))
    insecure = EnvClient[Any, Any, Any]("http://8.8.8.8")
    insecure.allow_insecure = True


async def test_token_steps_aside_when_authorization_is_taken(server: EnvServer) -> None:
    for headers, expected in (
        ({}, ("Bearer t0ken-1", None)),
        ({"authorization": "Bearer vendor"}, ("Bearer vendor", "t0ken-1")),
    ):
        client = GenericEnvClient(server.url)
        client._bind(Endpoint(server.url, headers=headers), token="t0ken-1")
        await client.reset()
        await client.close()
        sent = server.headers[-1]
        assert (sent.get("authorization"), sent.get("x-openenv-token")) == expected
        assert "t0ken-1" not in repr(client)
    assert "sec-websocket-extensions" not in server.headers[-1]


async def test_proxy_of_the_environment(server: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remote hosts go through HTTP_PROXY by CONNECT; loopback, docker, connect_to and NO_PROXY do not.

    Scenario: C19
    Mutation: proxy_for returns None always, or ignores is_loopback
    """
    with FaultyProxy(server.port, connect=True) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:pass@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("http_proxy", f"http://user:pass@127.0.0.1:{proxy.port}")
        async with GenericEnvClient("http://env.example.com:8123/base") as client:
            await client.reset()
        with GenericEnvClient("http://env.example.com:8123").sync() as blocking:
            blocking.reset()
        assert [head.split("\r\n")[0] for head in proxy.heads] == ["CONNECT env.example.com:8123 HTTP/1.1"] * 2
        assert "Proxy-Authorization: Basic dXNlcjpwYXNz" in proxy.heads[0]
        assert server.headers[0]["host"] == "env.example.com:8123"
        assert "proxy-authorization" not in server.headers[0]
        assert server.paths[0] == "/base/ws"
        async with GenericEnvClient(server.url) as direct:
            await direct.reset()
        tunnelled = GenericEnvClient("http://name.invalid")
        tunnelled._bind(Endpoint("http://name.invalid", connect_to=("127.0.0.1", server.port)))
        await tunnelled.reset()
        await tunnelled.close()
        assert len(proxy.heads) == 2
        assert server.headers[-1]["host"] == "name.invalid"
    for host in ("localhost", "127.0.0.1", "[::1]", "172.17.0.2", "host.docker.internal"):
        assert proxy_for(f"ws://{host}/ws") is None
    monkeypatch.setenv("no_proxy", "example.com")
    assert proxy_for("ws://env.example.com/ws") is None
    assert proxy_for("ws://other.org/ws") is not None
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(ConnectError, match="a socks5 proxy cannot be used"):
        proxy_for("ws://other.org/ws")


async def test_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    with FaultyProxy(None, answer=refusal) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        for error in await both("http://env.example.com"):
            assert "the proxy answered HTTP 407" in error.message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=8000-abc.sbx.test",
         "-addext", "subjectAltName=DNS:8000-abc.sbx.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


async def test_tls_name_is_kept_where_another_address_is_dialled(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """connect_to moves the socket, not Host, SNI or the certificate check; HTTPS_PROXY does not interfere."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trusted = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with EnvServer(ssl=context) as server:
        there = ("127.0.0.1", server.port)
        for face in ("async", "sync"):
            client = GenericEnvClient("https://x")
            client._bind(Endpoint("https://8000-abc.sbx.test/p?q=1", connect_to=there, tls=trusted), token="tok-123")
            if face == "async":
                await client.reset()
                assert (await client.step({"size": 300_000})).reward == 1.0
                await client.close()
            else:
                client.sync().reset()
                assert client.sync().step({"size": 300_000}).reward == 1.0
                client.sync().close()
            assert server.headers[-1]["host"] == "8000-abc.sbx.test"
            assert server.paths[-1] == "/p/ws?q=1"
        for url in ("https://wrong.sbx.test", "https://8000-abc.sbx.test"):
            client = GenericEnvClient("https://x")
            client._bind(Endpoint(url, connect_to=there, tls=trusted if "wrong" in url else None))
            with pytest.raises(ConnectError, match="TLS failed") as caught:
                await client.connect()
            assert not caught.value.retryable


async def test_tls_through_a_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trusted = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with EnvServer(ssl=context) as server, FaultyProxy(server.port, connect=True) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        for face in ("async", "sync"):
            client = GenericEnvClient("https://x")
            client._bind(Endpoint("https://8000-abc.sbx.test", tls=trusted))
            if face == "async":
                await client.reset()
                await client.close()
            else:
                client.sync().reset()
                client.sync().close()
        assert [head.split()[1] for head in proxy.heads] == ["8000-abc.sbx.test:443"] * 2
