from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import (
    AuthError,
    EndpointError,
    ProviderUnavailable,
    ReadyTimeout,
    SandboxGone,
    ServerExited,
)
from openenv_sandbox.provider import Endpoint, Exit, SandboxRef
from openenv_sandbox.ready import wait_ready
from tests.unit.launch_harness import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.anyio

REF = SandboxRef("fake", "scope", "box-1")


class Server:
    """A server whose end and output a test decides."""

    def __init__(self) -> None:
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.spoke = asyncio.Event()

    @property
    def ref(self) -> SandboxRef:
        return REF

    async def wait_exit(self) -> Exit:
        return await asyncio.shield(self.exit)

    async def first_output(self) -> None:
        await self.spoke.wait()


@contextlib.asynccontextmanager
async def answering(*replies: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers one request after the other with ``replies``, the last for ever; yields the URL and the requests."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(replies[min(len(requests), len(replies)) - 1])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()


def reply(status: str, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", body]).encode()


def at(url: str, **kw: Any) -> Callable[[], Awaitable[Endpoint]]:
    async def endpoint() -> Endpoint:
        return Endpoint(url, **kw)

    return endpoint


@pytest.mark.parametrize(
    "good",
    [
        reply("200 OK"),
        b"HTTP/1.1 204 No Content\r\n\r\n",
        reply("200 OK", "fine"),
        reply("200 OK", '{"status": "healthy"}'),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_every_good_answer_is_ready(good: bytes) -> None:
    """Empty, 204, text, JSON: all healthy.

    Scenario: E04
    Mutation: ready._judge asks for a body
    """
    async with answering(reply("503 Starting"), good) as (url, requests):
        endpoint = await wait_ready(at(url, headers={"X-Edge": "e"}), Server(), timeout=20, token="t0ken")
    assert endpoint.url == url
    assert len(requests) == 2
    assert b"GET /health HTTP/1.1" in requests[1]
    assert b"X-Edge: e\r\n" in requests[1]
    assert b"Authorization: Bearer t0ken\r\n" in requests[1]


async def test_path_and_query_of_the_endpoint_are_kept_and_the_dialled_address_is_not_the_host() -> None:
    async with answering(reply("200 OK")) as (url, requests):
        port = int(url.rpartition(":")[2])
        await wait_ready(at("http://box.example.org/p?sig=1", connect_to=("127.0.0.1", port)), Server(), timeout=20)
    assert requests[0].startswith(b"GET /p/health?sig=1 HTTP/1.1\r\nHost: box.example.org\r\n")


async def test_the_exit_of_the_server_is_noticed_at_once() -> None:
    """Exit code, command and the last 50 lines are in the error, without control characters.

    Scenario: E01
    Mutation: ready._Waiting.run no longer looks at the exit
    """
    server = Server()
    lines = "".join(f"line {n}\x1b[31m\x07\n" for n in range(100))
    asyncio.get_running_loop().call_later(0.05, server.exit.set_result, Exit(127, lines.encode()))
    with pytest.raises(ServerExited) as caught:
        await wait_ready(at("http://127.0.0.1:9"), server, timeout=600, command=["serve", "a b"])
    error = caught.value
    assert error.exit_code == 127
    assert "code 127" in error.message
    assert "serve 'a b'" in error.message
    assert error.log.split("\n")[0] == "line 50"
    assert "\x1b" not in error.log
    assert "\x07" not in error.log
    assert "not found in the image" in str(error)


async def test_one_good_answer_and_an_exit() -> None:
    """Bound once, then dead: the exit is known to whoever asks afterwards; readiness needs no window.

    Scenario: E02
    Mutation: wait_ready keeps the endpoint of a server whose exit it saw first
    """
    server = Server()
    server.exit.set_result(Exit(17, b"bye", "evicted"))
    async with answering(reply("503 x")) as (url, _):
        with pytest.raises(ServerExited, match=r"code 17 \(evicted\)"):
            await wait_ready(at(url), server, timeout=600)


async def test_an_outage_is_no_end_of_the_server() -> None:
    """A wait for the end that fails and may succeed later is begun again; what is final is not.

    Mutation: lasting_exit raises whatever wait_exit raised
    """
    server = Server()
    looks: list[int] = []

    async def wait_exit() -> Exit:
        looks.append(1)
        if len(looks) == 1:
            raise ProviderUnavailable("503", retryable=True)
        return Exit(3)

    server.wait_exit = wait_exit  # type: ignore[method-assign]
    with pytest.raises(ServerExited, match="code 3"):
        await wait_ready(at("http://127.0.0.1:9"), server, timeout=600)
    assert len(looks) == 2


async def test_refused_credentials_fail_fast() -> None:
    """401 through a vendor's proxy is an authentication error, not a timeout.

    Scenario: C08
    Mutation: ready._judge treats 401 like 503
    """
    async with answering(reply("401 Unauthorized")) as (url, requests):
        with pytest.raises(AuthError, match="401"):
            await wait_ready(at(url), Server(), timeout=600)
        assert len(requests) < 10


async def test_a_login_page_is_named() -> None:
    """307 to a login page: the error says auth and where it points, without its query.

    Scenario: C06
    Mutation: ready._judge follows redirects or goes on
    """
    async with answering(reply("307 T", Location="https://login.example.org/x?token=abc")) as (url, _):
        with pytest.raises(EndpointError) as caught:
            await wait_ready(at(url), Server(), timeout=600)
    assert "https://login.example.org/x" in caught.value.message
    assert "auth" in caught.value.message
    assert "abc" not in str(caught.value)


async def test_a_port_that_appears_late() -> None:
    """The port is published after a while: asked again; never: the error names the port.

    Scenario: E09
    Mutation: ready._try raises every EndpointError
    """
    tries = 0

    async with answering(reply("200 OK")) as (url, _):

        async def endpoint() -> Endpoint:
            nonlocal tries
            tries += 1
            if tries <= 3:
                raise EndpointError(f"port {8123} is not published yet", ref=REF)
            return Endpoint(url)

        await wait_ready(endpoint, Server(), timeout=20)
    assert tries == 4

    async def never() -> Endpoint:
        raise EndpointError("nothing is published yet", ref=REF)

    with pytest.raises(ReadyTimeout, match="8123"):
        await wait_ready(never, Server(), timeout=0.2, port=8123)


def _unused() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("case", "kind", "hint"),
    [
        ("dns", "DNS", "does not resolve"),
        ("refused", "ConnectionRefusedError", "0.0.0.0:8000"),
        ("404", "HTTP 404", "not an OpenEnv server"),
        ("502", "HTTP 502", "proxy before it"),
    ],
)
async def test_a_timeout_can_be_diagnosed(case: str, kind: str, hint: str) -> None:
    """The error says what came last, where, how often, how long, and what most likely helps. 401 fails fast instead.

    Scenario: E12
    Mutation: ready._explain gives one text for all
    """
    async with answering(reply(f"{case} x" if case.isdigit() else "200 OK")) as (url, _):
        if case == "dns":
            url = "http://no-such-host.invalid"
        elif case == "refused":
            url = f"http://127.0.0.1:{_unused()}"
        with pytest.raises(ReadyTimeout) as caught:
            await wait_ready(at(f"{url}/p?token=s3cret"), Server(), timeout=0.4, logs=_logs)
    error = caught.value
    assert kind in error.last
    assert f"{url}/p/health" in error.message
    assert f"after {error.attempts} attempts" in error.message
    assert "limit 0.4 s" in error.message
    assert hint in str(error)
    assert "s3cret" not in str(error)
    assert error.log == "still loading"
    assert error.attempts > 1


def _true_once(seen: list[bytes]) -> Callable[[], Awaitable[bool]]:
    async def seen_one() -> bool:
        return bool(seen)

    return seen_one


async def _logs() -> bytes:
    return b"still loading\n"


async def test_a_silent_listener_does_not_hold_the_probe() -> None:
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ReadyTimeout, match="no answer"):
            await wait_ready(at(url), Server(), timeout=0.3)
    finally:
        server.close()
        for writer in held:
            writer.close()


async def test_output_wakes_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server writes is a hint to look at once.

    Mutation: ready._Waiting.run waits for the exit alone
    """
    from openenv_sandbox import ready

    monkeypatch.setattr(ready, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(ready, "LONGEST_WAIT_S", 3600.0)
    server = Server()
    async with answering(reply("503 x"), reply("200 OK")) as (url, requests):
        task = asyncio.ensure_future(wait_ready(at(url), server, timeout=600))
        await until(_true_once(requests))
        server.spoke.set()
        await asyncio.wait_for(task, 30)
    assert len(requests) == 2


async def test_a_dead_tunnel_says_why_and_is_replaced() -> None:
    closed = made = 0

    async def close() -> None:
        nonlocal closed
        closed += 1

    async with answering(reply("200 OK")) as (url, _):

        async def endpoint() -> Endpoint:
            nonlocal made
            made += 1
            if made == 1:
                why = OSError("pod not found")
                return Endpoint(f"http://127.0.0.1:{_unused()}", failure=lambda: why, close=close)
            return Endpoint(url)

        await wait_ready(endpoint, Server(), timeout=20)
    assert (made, closed) == (2, 1)


async def test_a_sandbox_that_is_gone_is_not_waited_for() -> None:
    async def endpoint() -> Endpoint:
        raise SandboxGone("no sandbox box-1", ref=REF)

    with pytest.raises(SandboxGone):
        await wait_ready(endpoint, Server(), timeout=600)


async def test_cancelling_leaves_no_task_and_no_endpoint() -> None:
    closed: list[bool] = []

    async def close() -> None:
        closed.append(True)

    before = asyncio.all_tasks()
    async with answering(reply("503 x")) as (url, requests):
        task = asyncio.ensure_future(wait_ready(at(url, close=close), Server(), timeout=600))
        await until(_true_once(requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(5):
            await asyncio.sleep(0)
    assert closed == [True]
    assert asyncio.all_tasks() <= before


async def test_a_flood_of_output_is_cut() -> None:
    """One endless line is no reason to carry it all: the error keeps its end.

    Scenario: E12
    Mutation: tail_text counts lines only
    """

    async def logs() -> bytes:
        return b"x" * (5 << 20) + b"the end"

    async def endpoint() -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{_unused()}")

    with pytest.raises(ReadyTimeout) as caught:
        await wait_ready(endpoint, Server(), timeout=0.1, logs=logs)
    assert caught.value.log.endswith("the end")
    assert len(caught.value.log) <= 1 << 16
