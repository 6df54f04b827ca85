"""Servers that core starts by a command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import attach, launch, registry, sandbox
from openenv_sandbox._shell_script import KILL
from openenv_sandbox.capabilities import ExecCapabilities
from openenv_sandbox.process import _POLL
from openenv_sandbox.testing.fake import FakeCloud
from tests.unit.launch_harness import nothing_left, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.mark.parametrize("limits", [{}, {"max_s": 5.0}, {"stream": False}])
async def test_logs_and_exit_are_the_servers(cloud: FakeCloud, limits: dict[str, Any]) -> None:
    """Not those of the idle process that the backend booted.

    Mutation: RunningSandbox.logs or wait_exit asks the sandbox
    """
    provider = cloud.provider(start="exec", exec=ExecCapabilities(stdin_stream=True, user=False, **limits))
    async with sandbox("fake-env:1", provider=provider, command=["sh", "-c", "echo one; echo two; exit 7"]) as box:
        ended = await asyncio.wait_for(box.wait_exit(), 60)
        assert ended.code == 7
        assert await box.logs() == b"one\ntwo\n"
        assert await box.logs(tail=1) == b"two\n"
    await nothing_left(cloud)


@pytest.mark.parametrize("limits", [{}, {"max_s": 5.0}, {"stream": False}])
async def test_a_server_is_held_by_no_single_command(cloud: FakeCloud, limits: dict[str, Any]) -> None:
    """It runs detached, so that no connection, no limit of commands and no process of ours ends it.

    Mutation: ExecServer runs the server as one command
    """
    provider = cloud.provider(start="exec", exec=ExecCapabilities(stdin_stream=True, user=False, **limits))
    script = "echo up; exec python -m http.server $PORT"
    async with sandbox("fake-env:1", provider=provider, command=["sh", "-c", script]) as box:

        async def up() -> bool:
            return (await box.logs()).startswith(b"up")

        await until(up)
        holding = [c for c in cloud.calls if c.op == "exec" and c.status is None and script in c.args["argv"]]
        assert not holding, "no call stays open for the server itself"
    await nothing_left(cloud)


async def test_a_launch_through_short_commands(cloud: FakeCloud) -> None:
    """The whole way to a step.

    Mutation: the detached server does not get its environment
    """
    from openenv_sandbox.testing import fake_env

    script = f"exec python {fake_env.__file__}"
    provider = cloud.provider(start="exec", exec=ExecCapabilities(stdin_stream=True, user=False, max_s=5.0))
    async with launch("fake-env:1", provider=provider, command=["sh", "-c", script]) as env:
        assert (await env.reset()).reward == 0.0
    await nothing_left(cloud)


@pytest.mark.parametrize("way", ["detach", "aclose"])
async def test_letting_go_leaves_nothing_behind(cloud: FakeCloud, way: str) -> None:
    """What looks after the server ends with the use of the sandbox, without another command to end a command.

    Mutation: process.wait's command is not expendable, or Ownership.release does not stop the server's watch
    """
    cls = cloud.provider(start="exec")
    box = await sandbox("fake-env:1", provider=cls, command=["sh", "-c", "echo up; exec sleep 3000"])

    def looks() -> int:
        return len([c for c in cloud.calls if c.op == "exec" and c.status is None and _POLL in c.args["argv"]])

    async def looked_after() -> bool:
        return bool(looks()) and await box.logs() == b"up\n"

    await until(looked_after)
    await getattr(box, way)()
    for _ in range(5):
        await asyncio.sleep(0.1)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "openenv-server"]
    assert not [call for call in cloud.calls if call.op == "exec" and KILL in call.args["argv"]]
    with registry.registered(cls):
        async with attach(box.ref):
            pass
    await nothing_left(cloud)
