"""A reply belongs to its call or to nobody: timeouts, cancellation, cut connections, closing."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import CapacityError, MessageTooLarge, OpenEnvError, SessionLost, StepTimeout

from .harness import EnvServer, observation
from .proxies import FaultyProxy

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

pytestmark = pytest.mark.anyio

FAULTS = st.lists(st.tuples(st.sampled_from(["ok", "slow", "cancel"]), st.floats(0, 0.004)), min_size=1, max_size=8)
RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def test_late_reply_is_never_the_answer_to_the_next_call(server: EnvServer) -> None:
    """After a receive timeout the next call says that the session is over.

    Scenario: C03
    Mutation: AsyncConnection._tick sets the timeout on the waiter without ending the session
    """
    async with GenericEnvClient(server.url, message_timeout_s=0.05) as client:
        await client.reset()
        with pytest.raises(StepTimeout, match=r"did not answer within 0\.05 s") as caught:
            await client.step({"sleep": 0.15, "echo": "late"})
        assert caught.value.outcome == "unknown"
        for _ in range(2):
            with pytest.raises(SessionLost, match="did not answer"):
                await client.state()
        await client.reset()
        assert (await client.state())["step_count"] == 0
        assert server.opened == 2


def test_blocking_late_reply(server: EnvServer) -> None:
    """The same over a blocking socket.

    Scenario: C03
    Mutation: BlockingConnection._patience raises StepTimeout without ending the session
    """
    with GenericEnvClient(server.url, message_timeout_s=0.05).sync() as client:
        client.reset()
        with pytest.raises(TimeoutError):
            client.step({"sleep": 0.15, "echo": "late"})
        with pytest.raises(SessionLost):
            client.state()
        client.reset()
        assert client.step({"echo": "now"}).observation["echo"] == "now"


@RELAXED
@given(faults=FAULTS)
def test_no_reply_is_mismatched_whatever_is_cancelled(server: EnvServer, faults: list[tuple[str, float]]) -> None:
    """Random timeouts and cancellations: a step that returns returns its own answer.

    Scenario: C03
    Mutation: AsyncConnection.exchange lets a cancelled call leave without ending the session
    """

    async def run() -> None:
        async with GenericEnvClient(server.url, message_timeout_s=0.002) as client:
            for index, (fault, wait) in enumerate(faults):
                try:
                    if not client.connected:
                        await client.reset()
                    sleep = {"ok": 0.0, "slow": wait, "cancel": wait}[fault]
                    call = asyncio.ensure_future(client.step({"sleep": sleep, "echo": str(index)}))
                    if fault == "cancel":
                        await asyncio.sleep(wait / 2)
                        call.cancel()
                    assert (await call).observation["echo"] == str(index)
                except (StepTimeout, SessionLost, asyncio.CancelledError):
                    continue

    asyncio.run(run())


def test_blocking_property(server: EnvServer) -> None:
    """Two hundred steps with random delays around the timeout.

    Scenario: C03
    Mutation: BlockingConnection.exchange takes what lies in the socket for the reply
    """
    chance = random.Random(7)
    lost = 0
    with GenericEnvClient(server.url, message_timeout_s=0.003).sync() as client:
        client.reset()
        for index in range(200):
            try:
                got = client.step({"sleep": chance.random() * 0.004, "echo": str(index)})
                assert got.observation["echo"] == str(index)
            except (StepTimeout, SessionLost):
                lost += 1
                while not client.connected:
                    try:
                        client.reset()
                    except OpenEnvError:
                        continue
    assert 0 < lost < 200


async def test_unasked_message_ends_the_session() -> None:
    """A server that talks out of turn is not believed.

    Scenario: C03
    Mutation: Connection._ready returns any early message
    """

    async def chatty(server: EnvServer, ws: ServerConnection) -> None:
        await ws.recv()
        await ws.send(json.dumps(observation({"n": 1}, 1.0)))
        await ws.send(json.dumps(observation({"n": 2}, 2.0)))
        await ws.wait_closed()

    with EnvServer(chatty) as server:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            await asyncio.sleep(0.05)
            with pytest.raises(SessionLost, match="nobody asked for"):
                await client.step({})
        blocking = GenericEnvClient(server.url).sync()
        blocking.reset()
        await asyncio.sleep(0.05)
        with pytest.raises(SessionLost, match="nobody asked for"):
            blocking.step({})
        blocking.close()


async def test_a_cut_connection_is_transport_never_timeout(server: EnvServer) -> None:
    """A step three times as long as the edge lets connections live is lost, not late, and not repeated.

    Scenario: C13
    Mutation: connection_lost reports StepTimeout
    """
    with FaultyProxy(server.port, cut_after=0.1) as edge:
        async with GenericEnvClient(edge.url, message_timeout_s=30) as client:
            await client.reset()
            with pytest.raises(SessionLost) as caught:
                await client.step({"sleep": 0.3})
            assert not isinstance(caught.value, TimeoutError)
            assert isinstance(caught.value, ConnectionError)
            assert caught.value.outcome == "unknown"
        with GenericEnvClient(edge.url, message_timeout_s=30).sync() as client2:
            client2.reset()
            with pytest.raises(SessionLost):
                client2.step({"sleep": 0.3})
    assert len([m for m in server.seen if m["type"] == "step"]) == 2, "a step is never repeated"


async def test_first_connection_after_standby_is_retried_a_step_never(server: EnvServer) -> None:
    """Opening survives two resets; nothing of a step is sent twice.

    Scenario: B13
    Mutation: _DIAL_TRIES = 1, or the request is repeated in _request
    """
    with FaultyProxy(server.port, reset_first=2) as proxy:
        async with GenericEnvClient(proxy.url) as client:
            await client.reset()
            await client.step({})
        proxy.reset_first = 2
        with GenericEnvClient(proxy.url).sync() as client2:
            client2.reset()
        assert len(proxy.heads) == 6
    assert len([m for m in server.seen if m["type"] == "step"]) == 1


async def never_acks(server: EnvServer, ws: ServerConnection) -> None:
    # Below the library: it would answer the close by itself.
    await ws.recv()
    await ws.send(json.dumps(observation({}, 0.0)))
    ws.transport.pause_reading()
    await asyncio.sleep(60)


async def test_close_keeps_an_outer_deadline() -> None:
    """A peer that never acknowledges the close does not hold a caller with a deadline.

    Scenario: C05
    Mutation: AsyncConnection.close shields its wait
    """
    with EnvServer(never_acks) as server:
        client = GenericEnvClient(server.url)
        await client.reset()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.close(), 0.05)
        assert not client.connected
        blocking = GenericEnvClient(server.url)
        blocking._settings = type(blocking._settings)(close_timeout=0.05)
        blocking.sync().reset()
        blocking.sync().close()
        assert not blocking.connected


def test_server_slot_is_free_when_close_returns(server: EnvServer) -> None:
    """After close() the server has no session of ours.

    Scenario: C05
    Mutation: close() forgets the connection without ending it
    """
    client = GenericEnvClient(server.url).sync()
    client.reset()
    client.close()
    server.wait_closed()


async def test_capacity_error_queued_before_the_close_is_read() -> None:
    """The server says why before it hangs up, and that is the error.

    Scenario: D02
    Mutation: exchange raises SessionLost without looking at early messages
    """

    async def full(server: EnvServer, ws: ServerConnection) -> None:
        data = {
            "message": "Server at capacity: 1/1",
            "code": "CAPACITY_REACHED",
            "active_sessions": 1,
            "max_sessions": 1,
        }
        await ws.send(json.dumps({"type": "error", "data": data}))
        await ws.close()

    with EnvServer(full) as server:
        for pause in (0.0, 0.05):
            client = GenericEnvClient(server.url)
            await client.connect()
            await asyncio.sleep(pause)
            with pytest.raises(CapacityError, match=r"Server error: .*\(code: CAPACITY_REACHED\)") as caught:
                await client.reset()
            assert caught.value.data["max_sessions"] == 1
            await client.close()
            blocking = GenericEnvClient(server.url).sync()
            blocking.connect()
            await asyncio.sleep(pause)
            with pytest.raises(CapacityError):
                blocking.reset()
            blocking.close()


@pytest.mark.parametrize("code", [1001, 4408])
def test_closed_while_idle_is_noticed_before_anything_is_sent(code: int) -> None:
    """An idle close is SessionLost with its code, and reset goes on by itself."""

    async def idle(server: EnvServer, ws: ServerConnection) -> None:
        async for raw in ws:
            server.seen.append(json.loads(raw))
            await ws.send(json.dumps(observation({}, 0.0)))
            if server.opened == 1:
                await ws.close(code)

    with EnvServer(idle) as server:
        client = GenericEnvClient(server.url).sync()
        client.reset()
        server.wait_closed()
        with pytest.raises(SessionLost) as caught:
            client.step({})
        assert (caught.value.close_code, caught.value.outcome) == (code, "failed")
        assert len(server.seen) == 1
        client.reset()
        client.close()


async def test_1009_says_size_and_setting() -> None:
    """A server that announced no limit closes with 1009: the error names size and setting.

    Scenario: C16
    Mutation: _ended ignores the close code
    """
    with EnvServer(max_size=100_000) as server:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            with pytest.raises(MessageTooLarge, match=r"(?s)2000\d\d bytes.*UVICORN_WS_MAX_SIZE"):
                await client.step({"echo": "x" * 200_000})
        with GenericEnvClient(server.url).sync() as client2:
            client2.reset()
            with pytest.raises(MessageTooLarge, match="UVICORN_WS_MAX_SIZE"):
                client2.step({"echo": "x" * 200_000})


async def test_reply_over_our_limit_keeps_the_session(server: EnvServer) -> None:
    """An observation over the client's limit is an error that names the setting; the session goes on.

    Scenario: C16
    Mutation: FrameReader without skip_oversize
    """
    async with GenericEnvClient(server.url, max_message_size_mb=0.5) as client:
        await client.reset()
        assert len((await client.step({"size": 400_000})).observation["blob"]) == 400_000
        with pytest.raises(MessageTooLarge, match=r"limit of 500000 bytes; raise max_message_size_mb"):
            await client.step({"size": 600_000})
        assert (await client.state())["step_count"] == 2
    with GenericEnvClient(server.url, max_message_size_mb=0.5).sync() as client2:
        client2.reset()
        with pytest.raises(MessageTooLarge):
            client2.step({"size": 600_000})
        assert client2.state()["step_count"] == 1


async def test_announced_limit_is_kept_before_sending() -> None:
    """What the server announced is refused here, before a byte leaves, and the session goes on.

    Scenario: C16
    Mutation: check_size is not called
    """

    def announce(ws: ServerConnection, request: Any, response: Any) -> Any:
        response.headers["openenv-max-message"] = "1000"
        return response

    with EnvServer(process_response=announce) as server:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            with pytest.raises(MessageTooLarge, match="limit of 1000 bytes; raise OPENENV_MAX_MESSAGE_MB") as caught:
                await client.step({"echo": "x" * 2000})
            assert caught.value.outcome == "failed"
            assert (await client.step({"echo": "ok"})).observation["echo"] == "ok"
        assert len([m for m in server.seen if m["type"] == "step"]) == 1
