"""Pings where they pass, silence where they do not, and a loop or thread that stands still between two steps."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.client.keeper import Keeper
from openenv_sandbox.errors import SessionLost
from openenv_sandbox.provider import Endpoint

from .harness import EnvServer
from .proxies import FaultyProxy

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

pytestmark = pytest.mark.anyio


@pytest.fixture
def quick_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "tick", 0.02)


async def test_way_without_pings_carries_a_long_step(server: EnvServer) -> None:
    """Where the endpoint says that pings do not pass, none is sent and a step many intervals long succeeds.

    Scenario: C01
    Mutation: Connection ignores target.ping
    """
    with FaultyProxy(server.port, drop_control=True) as tunnel:
        client = GenericEnvClient(tunnel.url, websocket_ping_interval_s=0.05, websocket_ping_timeout_s=0.05)
        client._bind(Endpoint(tunnel.url, ping=False))
        await client.reset()
        assert (await client.step({"sleep": 0.5, "echo": "long"})).observation["echo"] == "long"
        await client.close()
        blocking = GenericEnvClient(tunnel.url, websocket_ping_interval_s=0.05, websocket_ping_timeout_s=0.05)
        blocking._bind(Endpoint(tunnel.url, ping=False))
        blocking.sync().reset()
        assert blocking.sync().step({"sleep": 0.5, "echo": "long"}).observation["echo"] == "long"
        assert 9 not in tunnel.dropped
        blocking._conn.abort("the proxy swallows the close")  # type: ignore[union-attr]
        blocking.sync().close()


async def test_where_pings_do_pass_silence_is_noticed(server: EnvServer) -> None:
    """The same proxy without the declaration: the session ends long before the deadline of the step."""
    with FaultyProxy(server.port, drop_control=True) as tunnel:
        kwargs = {"websocket_ping_interval_s": 0.05, "websocket_ping_timeout_s": 0.05}
        async with GenericEnvClient(tunnel.url, **kwargs) as client:  # type: ignore[arg-type]
            await client.reset()
            with pytest.raises(SessionLost, match="no answer to a ping") as caught:
                await client.step({"sleep": 5})
            assert "websocket_ping_interval_s=None" in str(caught.value)
        with GenericEnvClient(tunnel.url, **kwargs).sync() as blocking:  # type: ignore[arg-type]
            blocking.reset()
            with pytest.raises(SessionLost, match="no answer to a ping"):
                blocking.step({"sleep": 5})
        assert 9 in tunnel.dropped


async def test_pings_keep_a_quiet_step_alive(server: EnvServer) -> None:
    kwargs = {"websocket_ping_interval_s": 0.03, "websocket_ping_timeout_s": 0.5}
    async with GenericEnvClient(server.url, **kwargs) as client:  # type: ignore[arg-type]
        await client.reset()
        assert (await client.step({"sleep": 0.3})).reward == 1.0
    with GenericEnvClient(server.url, **kwargs).sync() as blocking:  # type: ignore[arg-type]
        blocking.reset()
        assert blocking.step({"sleep": 0.3}).reward == 1.0


def test_model_thinks_longer_than_the_server_waits_for_pongs(quick_keeper: None) -> None:
    """A blocking client that does nothing for many ping timeouts still answers the server's pings.

    Scenario: C04
    Mutation: BlockingConnection.open does not call keeper.add
    """
    with EnvServer(ping_interval=0.2, ping_timeout=1.0) as server:
        with GenericEnvClient(server.url).sync() as client:
            client.reset()
            client.step({})
            end = time.monotonic() + 4.0
            while time.monotonic() < end:  # a CPU-bound caller
                sum(range(1000))
            assert client.step({"echo": "still"}).observation["echo"] == "still"
            assert client.state()["step_count"] == 2
        assert server.opened == 1


async def test_loop_that_stands_still_loses_no_reply_and_names_a_lost_session(server: EnvServer) -> None:
    """A blocked loop is no dead server: our timers wait for what lies in the socket. What the server ended is named.

    Scenario: C04
    Mutation: _tick decides at once, without the second look
    """
    async with GenericEnvClient(
        server.url, message_timeout_s=0.15, websocket_ping_interval_s=0.05, websocket_ping_timeout_s=0.05
    ) as client:
        await client.reset()
        step = asyncio.ensure_future(client.step({"sleep": 0.02, "echo": "waits"}))
        await asyncio.sleep(0.005)
        time.sleep(0.4)  # noqa: ASYNC251 - the loop stands still on purpose
        assert (await step).observation["echo"] == "waits"
        time.sleep(0.4)  # noqa: ASYNC251
        assert (await client.state())["step_count"] == 1
    with EnvServer(ping_interval=0.05, ping_timeout=0.05) as strict:
        async with GenericEnvClient(strict.url) as client:
            await client.reset()
            time.sleep(0.5)  # noqa: ASYNC251
            try:
                await client.step({})
            except SessionLost:
                await client.reset()
                await client.step({})


async def test_dead_server_is_noticed_at_once() -> None:
    """The server goes away in the middle of a step with a deadline of an hour: the step ends now."""

    async def dies(server: EnvServer, ws: ServerConnection) -> None:
        async for raw in ws:
            if b"step" in (raw if isinstance(raw, bytes) else raw.encode()):
                ws.transport.abort()
                return
            await ws.send('{"type":"observation","data":{"observation":{},"reward":0,"done":false}}')

    with EnvServer(dies) as server:
        async with GenericEnvClient(server.url, message_timeout_s=3600) as client:
            await client.reset()
            with pytest.raises(SessionLost):
                await client.step({})
        with GenericEnvClient(server.url, message_timeout_s=3600).sync() as blocking:
            blocking.reset()
            with pytest.raises(SessionLost):
                blocking.step({})
