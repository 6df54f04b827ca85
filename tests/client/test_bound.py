"""A client that a launcher tied to a sandbox: why the session died, fresh endpoints, and what close ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import portal
from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import OpenEnvError, ServerExited, SessionLost
from openenv_sandbox.provider import Endpoint

from .harness import EnvServer

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

pytestmark = pytest.mark.anyio


async def dies(server: EnvServer, ws: ServerConnection) -> None:
    await ws.recv()
    await ws.send('{"type":"observation","data":{"observation":{},"reward":0,"done":false}}')
    await ws.recv()
    ws.transport.abort()


def bound(url: str, log: list[str], **kwargs: Any) -> GenericEnvClient:
    async def on_close() -> None:
        log.append("stopped")

    client = GenericEnvClient(url)
    client._bind(Endpoint(url), on_close=on_close, sandbox="the sandbox", **kwargs)
    return client


async def test_exit_of_the_server_is_the_error_not_the_socket() -> None:
    """The first call of a server that dies says its exit code.

    Scenario: E02
    Mutation: _request does not ask _explained
    """

    async def death() -> OpenEnvError:
        return ServerExited("the server exited with code 17", exit_code=17, log="boom")

    with EnvServer(dies) as server:
        log: list[str] = []
        client = bound(server.url, log, death=death)
        assert client.sandbox == "the sandbox"
        await client.reset()
        with pytest.raises(ServerExited, match="code 17") as caught:
            await client.step({})
        assert isinstance(caught.value.__cause__, SessionLost)
        await client.close()
        await client.close()
        assert log == ["stopped"]


async def test_hooks_that_fail_or_know_nothing_leave_the_first_error() -> None:
    async def knows_nothing() -> None:
        return None

    async def fails() -> OpenEnvError:
        raise RuntimeError("the daemon is gone")

    for death in (knows_nothing, fails):
        with EnvServer(dies) as server:
            client = bound(server.url, [], death=death)
            await client.reset()
            with pytest.raises(SessionLost):
                await client.step({})
            await client.close()


async def test_why_the_tunnel_died_is_in_the_error() -> None:
    with EnvServer(dies) as server:
        client = GenericEnvClient(server.url)
        client._bind(Endpoint(server.url, failure=lambda: RuntimeError("portforward: pod not found")))
        await client.reset()
        with pytest.raises(SessionLost, match="portforward: pod not found"):
            await client.step({})
        await client.close()


async def test_a_reconnect_asks_for_a_fresh_endpoint(server: EnvServer) -> None:
    asked: list[int] = []

    async def refresh() -> Endpoint:
        asked.append(1)
        return Endpoint(server.url, headers={"x-ticket": f"ticket-{len(asked)}"})

    client = GenericEnvClient("http://127.0.0.1:1")
    client._bind(Endpoint(server.url, headers={"x-ticket": "first-1"}), refresh=refresh)
    await client.reset()
    assert asked == []
    client._conn.abort("test")  # type: ignore[union-attr]
    await client.reset()
    assert [headers["x-ticket"] for headers in server.headers] == ["first-1", "ticket-1"]
    await client.close()


def test_blocking_hooks_run_in_the_loop_they_belong_to(server: EnvServer) -> None:
    where: list[Any] = []

    async def on_close() -> None:
        where.append(asyncio.get_running_loop())

    async def bind(client: GenericEnvClient) -> None:
        client._bind(Endpoint(server.url), on_close=on_close)

    client = GenericEnvClient(server.url)
    portal.run_sync(bind, client)
    client.sync().reset()
    client.sync().close()
    assert where == [portal.loop()]


async def test_sandbox_is_stopped_even_when_the_session_cannot_be_closed(server: EnvServer) -> None:
    log: list[str] = []
    client = bound(server.url, log)
    await client.reset()

    async def fails() -> None:
        raise OSError("socket")

    client._conn.close = fails  # type: ignore[union-attr,method-assign]
    conn = client._conn
    with pytest.raises(OSError, match="socket"):
        await client.close()
    assert log == ["stopped"]
    assert conn is not None
    conn.abort("test")
