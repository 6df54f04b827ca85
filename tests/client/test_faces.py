"""One client, three ways to use it: awaited, blocking, and touched in a notebook."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.client import EnvClient, GenericAction, GenericEnvClient, StepResult, SyncEnvClient
from openenv_sandbox.errors import ConfigError, UsageError
from openenv_sandbox.models import Action, Observation, State

if TYPE_CHECKING:
    from .harness import EnvServer

pytestmark = pytest.mark.anyio


class Echo(Action):
    echo: str = ""


class Echoed(Observation):
    echo: str = ""


class EchoClient(EnvClient[Echo, Echoed, State]):
    async def twice(self, text: str) -> int:
        await self.step(Echo(echo=text))
        await asyncio.sleep(0)
        await self.step(Echo(echo=text))
        return (await self.state()).step_count


class ThreeMethods(EnvClient[Any, Any, Any]):
    def _step_payload(self, action: Any) -> dict[str, Any]:
        return {"echo": action}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        return StepResult(
            observation=Echoed(echo=payload["observation"].get("echo", "")),
            reward=payload["reward"],
            done=payload["done"],
            info={"from": "old code"},
        )

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)

    def step(self, action: Any, render: bool = False, **kwargs: Any) -> Any:
        return super().step(f"{action}!" if render else action)


async def test_awaited(server: EnvServer) -> None:
    async with EchoClient(server.url) as client:
        first = await client.reset(seed=3)
        assert first.observation.metadata == {"kwargs": {"seed": 3}}
        result = await client.step(Echo(echo="hi"))
        assert (result.observation.echo, result.reward, result.done) == ("hi", 1.0, False)
        assert await client.twice("x") == 3
    await asyncio.to_thread(server.wait_closed)  # the closing handshake may overtake the handler
    assert [m["type"] for m in server.seen] == ["reset", "step", "step", "step", "state", "close"]
    assert server.seen[1] == {"type": "step", "data": {"echo": "hi"}}


def test_blocking_outside_a_loop(server: EnvServer) -> None:
    client = EchoClient(server.url)
    assert client.reset().reward == 0.0
    assert client.step(Echo(echo="a")).observation.echo == "a"
    assert client.state().step_count == 1
    client.close()
    client.close()
    assert client.reset().reward == 0.0, "a client that was closed connects again"
    client.close()


def test_sync_proxies_coroutine_methods_in_the_same_session(server: EnvServer) -> None:
    with EchoClient(server.url).sync() as client:
        assert isinstance(client, SyncEnvClient)
        assert client.sync() is client
        assert client.async_client.sync() is client
        client.reset()
        client.step(Echo(echo="one"))
        assert client.twice("two") == 3
        assert client.state().step_count == 3
    assert server.opened == 1


async def test_sync_client_inside_a_running_loop(server: EnvServer) -> None:
    client = EchoClient(server.url).sync()
    client.reset()
    assert client.step(Echo(echo="cell")).observation.echo == "cell"
    assert client.twice("x") == 3
    client.close()
    assert server.opened == 1


async def test_a_handle_resolves_when_touched_and_sends_nothing_before(server: EnvServer) -> None:
    """As in a cell of a notebook, whose loop runs already.

    Scenario: J03
    Mutation: a handle asks for `await`, or sends when it is made
    """
    client = EchoClient(server.url)
    untouched = client.reset()
    assert "not sent yet" in repr(untouched)
    assert server.opened == 0
    assert untouched.observation.metadata == {"kwargs": {}}
    assert untouched.reward == 0.0
    assert len(server.seen) == 1, "touching twice sends once"
    step = client.step(Echo(echo="nb"))
    assert step.observation.echo == "nb"
    client.sync().close()


async def test_a_handle_is_a_coroutine_for_asyncio(server: EnvServer) -> None:
    async with EchoClient(server.url) as client:
        await asyncio.create_task(client.reset())  # type: ignore[arg-type]
        one, two = await asyncio.gather(client.step(Echo(echo="1")), client.step(Echo(echo="2")))
        assert (one.observation.echo, two.observation.echo) == ("1", "2")
        handle = client.step(Echo(echo="3"))
        assert await handle is await handle
        assert len([m for m in server.seen if m["type"] == "step"]) == 3


async def test_looking_at_a_task_of_a_handle_sends_nothing(server: EnvServer) -> None:
    """asyncio tests the coroutine of a task for its repr, in debug mode by itself.

    Mutation: resolve the handle in __bool__
    """
    async with EchoClient(server.url) as client:
        handle = client.step(Echo(echo="once"))
        task: asyncio.Task[Any] = asyncio.create_task(handle)  # type: ignore[arg-type]
        assert task.get_coro()
        assert "pending" in repr(task)
        assert server.seen == []
        assert (await task).observation.echo == "once"
        assert handle
        assert len(server.seen) == 1


async def test_the_first_use_decides(server: EnvServer) -> None:
    async with EchoClient(server.url) as client:
        await client.reset()
        forgotten = client.step(Echo(echo="x"))
        with pytest.raises(UsageError, match=r"without await.*\n.*await client\.step"):
            _ = forgotten.observation
        with pytest.raises(UsageError, match="opened by await"):
            client.sync().state()
        assert isinstance(UsageError("x"), RuntimeError)
    client.sync().reset()
    client.sync().close()


async def test_a_session_somebody_else_opened_decides_too(server: EnvServer) -> None:
    client = EchoClient(server.url)
    await client._connect_async()  # what a launcher does: no face was chosen yet
    for use in (lambda: client.sync().reset(), lambda: client.reset().observation):
        with pytest.raises(UsageError, match="await"):
            use()
    assert (await client.reset()).reward == 0.0
    await client.close()


def test_three_method_form_and_public_override(server: EnvServer) -> None:
    with ThreeMethods(server.url).sync() as client:
        client.reset()
        result = client.step("hey", render=True)
        assert result.observation.echo == "hey!"
        assert result.metadata == {"from": "old code"}
        assert client.state().step_count == 1
    with ThreeMethods(server.url) as plain:
        plain.reset()
        assert plain.step("yo").observation.echo == "yo"


def test_types_by_class_attributes(server: EnvServer) -> None:
    class ByAttributes(EnvClient[Any, Any, Any]):
        action = Echo
        observation = Echoed
        state = State  # type: ignore[assignment]

    with ByAttributes(server.url).sync() as client:
        client.reset()
        assert isinstance(client.step(Echo(echo="t")).observation, Echoed)
        assert client.state() == State(episode_id="e", step_count=1)


def test_any_thread_one_at_a_time(server: EnvServer) -> None:
    client = EchoClient(server.url).sync()
    client.reset()
    wrong: list[str] = []

    def work(name: str) -> None:
        for index in range(20):
            text = f"{name}{index}"
            if client.step(Echo(echo=text)).observation.echo != text:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.state().step_count == 80
    client.close()


def test_generic_client_takes_dicts_models_and_generic_actions(server: EnvServer) -> None:
    with GenericEnvClient(server.url).sync() as client:
        client.reset()
        for action in ({"echo": "v"}, GenericAction(echo="v"), Echo(echo="v")):
            assert client.step(action).observation["echo"] == "v"


async def test_new_session_is_closed_with_its_parent(server: EnvServer) -> None:
    async with EchoClient(server.url, message_timeout_s=7.0) as client:
        await client.reset()
        other = await client.new_session()
        assert type(other) is EchoClient
        await other.reset()
        await other.step(Echo())
        assert (await client.state()).step_count == 0
        assert server.open == 2
    server.wait_closed()
    with EchoClient(server.url).sync() as blocking:
        second = blocking.new_session()
        assert second.reset().reward == 0.0
    server.wait_closed()


def test_constructor_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="base_url or a provider"):
        EchoClient()
    with pytest.raises(ConfigError, match="not an address"):
        EchoClient("ftp://x")
    with pytest.raises(ConfigError, match="neither simulation nor production"):
        EchoClient("http://x", mode="prod")
    monkeypatch.setenv("OPENENV_CLIENT_MODE", "production")
    assert EchoClient("x").mode == "production"


def test_old_container_provider_is_started_at_the_first_call(server: EnvServer) -> None:
    calls: list[str] = []

    class Containers:
        def start_container(self) -> str:
            calls.append("start")
            return server.url

        def stop_container(self) -> None:
            calls.append("stop")

    with EchoClient(provider=Containers()).sync() as client:
        client.reset()
    assert calls == ["start", "stop"]

    class Needy:
        def start_container(self, image: str) -> str:
            return image

    with pytest.raises(ValueError, match="needs image"):
        EchoClient(provider=Needy()).reset()
