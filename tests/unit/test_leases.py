from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from openenv_sandbox import _leases, registry
from openenv_sandbox.errors import ConfigError, ProviderError, UnknownProvider
from openenv_sandbox.testing.fake import FakeProvider

pytestmark = pytest.mark.anyio


class Counted(FakeProvider):
    name = "counted"
    made: list[Counted]
    closes: int
    threads: set[int]
    failures: int
    gate: threading.Event

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        cls = type(self)
        assert cls.gate.wait(20)
        cls.threads.add(threading.get_ident())
        if cls.failures:
            cls.failures -= 1
            raise ValueError("sekret: no such region")
        cls.made.append(self)

    async def aclose(self) -> None:
        type(self).closes += 1


@pytest.fixture
def counted() -> type[Counted]:
    gate = threading.Event()
    gate.set()
    return type("Counted", (Counted,), {"made": [], "closes": 0, "threads": set(), "failures": 0, "gate": gate})


async def test_equal_options_share_one_instance_until_the_last_release(counted: type[Counted]) -> None:
    first, second = await asyncio.gather(registry.acquire(counted), registry.acquire(counted, {"account": "test"}))
    other = await registry.acquire(counted, {"account": "other"})
    assert first.provider is second.provider is not other.provider
    await first.release()
    await first.release()
    assert counted.closes == 0
    await second.release()
    assert counted.closes == 1
    async with await registry.acquire(counted) as again:
        assert again is not first.provider
    await other.release()
    assert (len(counted.made), counted.closes) == (3, 3)


async def test_the_constructor_runs_in_another_thread(counted: type[Counted], no_blocking: None) -> None:
    lease = await registry.acquire(counted)
    assert threading.get_ident() not in counted.threads
    await lease.release()


async def test_another_loop_gets_its_own(counted: type[Counted]) -> None:
    lease = await registry.acquire(counted)

    def elsewhere() -> Any:
        async def run() -> Any:
            async with await registry.acquire(counted) as provider:
                return provider

        return asyncio.run(run())

    assert await asyncio.to_thread(elsewhere) is not lease.provider
    await lease.release()
    assert counted.closes == 2


async def test_a_failed_construction_is_not_remembered(counted: type[Counted]) -> None:
    counted.failures = 1
    with pytest.raises(ProviderError, match="could not be set up: ValueError") as caught:
        await registry.acquire(counted)
    assert isinstance(caught.value.__cause__, ValueError)
    lease = await registry.acquire(counted)
    await lease.release()
    assert counted.closes == 1


async def test_an_sdk_that_exits_the_process_does_not(counted: type[Counted]) -> None:
    class Exiting(Counted):
        def __init__(self, options: Any = None) -> None:
            raise SystemExit(2)

    with pytest.raises(ProviderError, match="tried to exit"):
        await registry.acquire(Exiting)


async def test_a_cancelled_waiter_leaves_nothing_behind(counted: type[Counted]) -> None:
    counted.gate.clear()
    task = asyncio.create_task(registry.acquire(counted))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not counted.made  # it was not waited for
    counted.gate.set()
    while _leases._closing:
        await asyncio.wait(_leases._closing, timeout=20)
    assert counted.closes == 1
    assert not _leases._slots


async def test_a_close_that_hangs_is_left_behind(
    counted: type[Counted], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(Counted):
        made, closes, threads, failures, gate = [], 0, set(), 0, counted.gate

        async def aclose(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(_leases, "CLOSE_S", 0.01)
    lease = await registry.acquire(Hanging)
    await asyncio.wait_for(lease.release(), 20)
    assert "left behind" in caplog.text


async def test_an_instance_is_passed_through_and_not_closed(counted: type[Counted]) -> None:
    mine = counted()
    lease = await registry.acquire(mine)
    assert lease.provider is mine
    await lease.release()
    assert counted.closes == 0
    with pytest.raises(ConfigError, match="exists already"):
        await registry.acquire(mine, {"account": "x"})


async def test_wrong_wishes_are_sentences(counted: type[Counted]) -> None:
    with pytest.raises(UnknownProvider):
        await registry.acquire("nowhere")
    with pytest.raises(ConfigError, match="did you mean 'account'"):
        await registry.acquire(counted, {"acount": "x"})
    with pytest.raises(ConfigError, match="must be a name"):
        await registry.acquire(int)  # type: ignore[arg-type]
