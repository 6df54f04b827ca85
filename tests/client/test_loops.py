"""Loops, threads, forks, pickles: each works or says why not, and none hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import portal
from openenv_sandbox.client import EnvClient, GenericEnvClient
from openenv_sandbox.errors import OpenEnvError, SessionLost, UsageError
from openenv_sandbox.provider import Endpoint

from .harness import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from .harness import EnvServer


def _in_thread(fn: Callable[[], Any]) -> Any:
    box: list[Any] = []

    def run() -> None:
        try:
            box.append(fn())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert box, "it hangs"
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


async def _reset(client: GenericEnvClient) -> float | None:
    return (await client.reset()).reward


MADE = ("asyncio.run", "live loop", "sync", "untouched")
USED = ("sync", "new loop", "other thread")


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("used", USED)
def test_made_here_used_there(server: EnvServer, made: str, used: str) -> None:
    """Every pair of where a client was opened and where it is used works or raises a named error.

    Scenario: J01
    Mutation: ClientCore._session does not compare loops
    """
    client = GenericEnvClient(server.url)
    live = None
    if made == "asyncio.run":
        asyncio.run(_reset(client))
    elif made == "live loop":
        live = LoopThread()
        live.call(lambda: _reset(client))
    elif made == "sync":
        client.sync().reset()

    def use() -> Any:
        if used == "new loop":
            return asyncio.run(_reset(client))
        if used == "other thread":
            return _in_thread(lambda: client.sync().reset().reward)
        return client.sync().reset().reward

    try:
        if (made == "live loop") or (made == "sync" and used == "new loop"):
            with pytest.raises(UsageError, match="session"):
                use()
        else:
            assert use() == 0.0
    finally:
        if live is not None:
            live.call(client.close)
            live.stop()
        else:
            client.close()


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_step_after_the_loop_ended_says_so(server: EnvServer) -> None:
    client = GenericEnvClient(server.url)
    asyncio.run(_reset(client))

    async def step() -> None:
        await client.step({})

    with pytest.raises(SessionLost, match="event loop it was opened in has ended"):
        asyncio.run(step())
    client.close()


def test_uvloop(server: EnvServer) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def run() -> None:
        async with GenericEnvClient(server.url.replace("127.0.0.1", "localhost")) as client:
            await client.reset()
            assert (await client.step({"size": 300_000})).reward == 1.0

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_trio_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    trio = types.ModuleType("trio")
    trio.lowlevel = types.SimpleNamespace(in_trio_run=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trio", trio)
    with pytest.raises(UsageError, match="cannot be awaited under trio"):
        GenericEnvClient("http://127.0.0.1:1").reset()


def _child(client: GenericEnvClient, answers: Any) -> None:
    try:
        client.sync().state()
        answers.put("worked")
    except UsageError as error:
        answers.put(f"told: {error.message}")
    try:
        portal.run_sync(asyncio.sleep, 0)
        answers.put("worked")
    except UsageError as error:
        answers.put(f"told: {error.message}")
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_is_told_at_once(server: EnvServer) -> None:
    """A forked child gets a sentence, for a session as for the background loop; the parent goes on.

    Scenario: J01
    Mutation: _check_process returns always
    """
    client = GenericEnvClient(server.url)
    client.sync().reset()
    portal.run_sync(asyncio.sleep, 0)
    fork = multiprocessing.get_context("fork")
    answers: Any = fork.SimpleQueue()
    child = fork.Process(target=_child, args=(client, answers))
    child.start()
    child.join(20)
    assert child.exitcode == 0, "it hangs"
    first, second = answers.get(), answers.get()
    assert first.startswith("told: this client's session belongs to process")
    assert second.startswith("told: the background loop belongs to process")
    assert client.sync().state()["step_count"] == 0
    client.close()


class Typed(EnvClient[Any, Any, Any]):
    pass


def test_pickles(server: EnvServer) -> None:
    """An unconnected client travels; a live one, or one with secrets, says why not.

    Scenario: J06
    Mutation: __getstate__ returns the whole __dict__
    """
    cloudpickle = pytest.importorskip("cloudpickle")
    client = Typed(server.url, message_timeout_s=7.0)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        again = pickle.loads(dumps(client))
        assert type(again) is Typed
        assert again._settings == client._settings
        assert again.sync().reset().reward == 0.0
        with pytest.raises(TypeError, match="connected Typed cannot be pickled"):
            dumps(again)
        with pytest.raises(TypeError, match="connected Typed cannot be pickled"):
            dumps(again.sync())
        again.close()
        twin = pickle.loads(dumps(again.sync()))
        assert twin.reset().reward == 0.0
        twin.close()
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(Typed(server.url, headers={"Authorization": "Bearer canary-123"}))
    for error in (SessionLost("x", close_code=4408), OpenEnvError("y", hint="z")):
        copy = pickle.loads(cloudpickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


# ------------------------------------------------------------------------------------------------- the portal


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_run_sync_inside_a_running_loop_and_not_inside_itself() -> None:
    async def cell() -> int:
        return portal.run_sync(give, 5)

    assert asyncio.run(cell()) == 5
    with pytest.raises(UsageError, match="background loop itself"):
        portal.run_sync(cell)


def test_run_sync_passes_errors_and_runs_many_threads() -> None:
    async def fails() -> None:
        raise SessionLost("gone")

    with pytest.raises(SessionLost):
        portal.run_sync(fails)
    results: list[int] = []
    threads = [threading.Thread(target=lambda i=i: results.append(portal.run_sync(give, i))) for i in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == list(range(9))


FORGETFUL = """
    import asyncio, sys
    from openenv_sandbox import portal
    from openenv_sandbox.client import GenericEnvClient
    from openenv_sandbox.provider import Endpoint

    async def gone():
        await asyncio.sleep(0)
        print("stopped", flush=True)

    async def bind(client):
        client._bind(Endpoint(sys.argv[1]), on_close=gone)

    client = GenericEnvClient(sys.argv[1])
    portal.run_sync(bind, client)
    client.sync().reset()
    async def forever():
        await asyncio.sleep(3600)
    portal._get_portal().start_task_soon(forever)
    {end}
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "raise KeyboardInterrupt"])
def test_process_ends_and_closes_what_was_forgotten(server: EnvServer, end: str) -> None:
    """A client nobody closed is closed at exit, and an open background loop does not hold the process.

    Scenario: A17
    Mutation: the exit hook is not registered
    """
    code = textwrap.dedent(FORGETFUL).format(end=end)
    done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped\n"
    assert "never awaited" not in done.stderr
    assert ("Traceback" in done.stderr) == (end == "raise KeyboardInterrupt")
    server.wait_closed()


def test_interrupted_call_is_cancelled_and_its_cleanup_awaited() -> None:
    """Ctrl-C in a blocking call cancels it in the background loop and waits for its cleanup."""
    code = """
        import asyncio, os, signal, threading
        from openenv_sandbox import portal

        async def work():
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.2)
                print("cleaned", flush=True)
        try:
            portal.run_sync(work)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(portal.run_sync(asyncio.sleep, 0, "usable"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["cleaned", "interrupted", "usable"], done.stderr


def test_endpoint_is_never_pickled_with_a_client(server: EnvServer) -> None:
    client = Typed(server.url)
    client._bind(Endpoint(server.url, headers={"x": "canary-123"}))
    assert b"canary-123" not in pickle.dumps(client)
