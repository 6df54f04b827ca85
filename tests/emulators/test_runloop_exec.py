"""Commands, files and the end of Runloop's devboxes, by questions that the service holds for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("runloop_api_client", reason="needs the Runloop SDK: pip install 'openenv[runloop]'")

from openenv_providers.runloop import RunloopProvider

from openenv_sandbox.errors import FileError, OpenEnvError, ProviderError, ProviderUnavailable, SandboxGone
from openenv_sandbox.testing.case import HANG_S
from tests.emulators.runloop_bench import OUR_KEY, asked, emulated, made, prepare, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.emulators.engine import Engine
    from tests.emulators.faces.runloop_api import RunloopFace

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def face(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunloopFace]:
    with emulated(engine, monkeypatch) as face:
        yield face


@pytest.fixture
async def provider(face: RunloopFace) -> AsyncIterator[RunloopProvider]:
    provider = await asyncio.to_thread(RunloopProvider)
    yield provider
    await provider.aclose()


async def test_more_output_than_an_answer_holds(provider: RunloopProvider, face: RunloopFace) -> None:
    """An answer holds a hundred lines; the rest is read from the stream, each stream by itself.

    Mutation: the answer's last lines pass for all of them
    """
    sandbox = await made(provider, face)
    code, out, err = await run(sandbox, "seq 1 20000; echo 'é few' >&2; exit 7")
    assert (code, err.decode()) == (7, "é few\n")
    assert out == b"".join(b"%d\n" % number for number in range(1, 20001))


async def test_a_command_longer_than_a_question(
    provider: RunloopProvider, face: RunloopFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service holds a question for so long and answers 408; two broken questions cost nothing either.

    Mutation: a 408, or one failing look, ends the command
    """
    from openenv_providers import _runloop_api

    sandbox = await made(provider, face)
    face.hold_s = 0.05
    failed = face.engine.faults.add("wait", status=502, times=2)
    assert await asyncio.wait_for(run(sandbox, "sleep 0.4; echo done"), HANG_S) == (0, b"done\n", b"")
    assert failed.hits == 2
    monkeypatch.setattr(_runloop_api, "PATIENCE_S", 0.0)
    assert await asyncio.wait_for(run(sandbox, "sleep 0.4; echo again"), HANG_S) == (0, b"again\n", b"")


async def test_questions_that_keep_failing(
    provider: RunloopProvider, face: RunloopFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few in a row, and the command's result is unknown.

    Mutation: the question is repeated for ever
    """
    from openenv_providers import _runloop_api

    monkeypatch.setattr(_runloop_api, "PATIENCE_S", 0.5)
    sandbox = await made(provider, face)
    failed = face.engine.faults.add("wait", status=502, times=None)
    with pytest.raises(ProviderError) as caught:
        await asyncio.wait_for(run(sandbox, "true; sleep 5"), HANG_S)
    assert failed.hits >= 2
    assert caught.value.retryable


async def test_refused_because_it_has_ended(provider: RunloopProvider, face: RunloopFace) -> None:
    """The vendor's words for that are not known: the devbox is looked at. Other refusals stay what they are.

    Mutation: a 400 of a devbox that was shut down is a plain ProviderError
    """
    sandbox = await made(provider, face)
    face.engine.faults.add("exec", status=400)
    with pytest.raises(ProviderError) as caught:
        await run(sandbox, "true")
    assert type(caught.value) is ProviderError
    with pytest.raises(FileError, match="/proc/none"):
        await sandbox.put("/proc/none", b"x")
    await provider.delete(sandbox.ref)
    for call in (
        run(sandbox, "true"),
        sandbox.put("/tmp/x", b"x"),
        sandbox.endpoint(8000),
        provider.attach(sandbox.ref),
    ):
        with pytest.raises(SandboxGone, match="ended"):
            await call


async def test_the_end_of_a_devbox_is_noticed(provider: RunloopProvider, face: RunloopFace) -> None:
    """However many questions it takes, and whatever becomes of them.

    Mutation: an outage of the service is taken for the end
    """
    sandbox = await made(provider, face)
    face.hold_s = 0.05
    waiting = asyncio.ensure_future(sandbox.wait_exit())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    outage = face.engine.faults.add("wait", status=503, times=3)
    while not outage.hits == 3:  # noqa: ASYNC110 - on another loop
        await asyncio.sleep(0.02)
    assert not waiting.done()
    await asyncio.to_thread(face.engine.call, face.engine.delete(sandbox.ref.id))
    assert str(await asyncio.wait_for(waiting, HANG_S)) == "an unknown code (api_shutdown)"


async def test_attaching_to_one_that_boots(
    provider: RunloopProvider, face: RunloopFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost reply the devbox that is found may not take commands yet.

    Mutation: attach returns a devbox that refuses commands, or waits without end
    """
    from openenv_providers import _runloop_devboxes

    spec = asked(face)
    prepared = await prepare(provider, spec)
    face.engine.faults.add("create", when="after", status=0)
    with pytest.raises(OpenEnvError):
        await provider.create(prepared, spec, key=OUR_KEY)
    (ref,) = await provider.find(OUR_KEY)
    sandbox = await provider.attach(ref)
    assert sandbox.info.status == "running"
    assert (await run(sandbox, "echo on"))[1] == b"on\n"
    face.devboxes[ref.id].status = "initializing"
    face.hold_s = 0.05
    monkeypatch.setattr(_runloop_devboxes, "TAKE_S", 0.2)
    with pytest.raises(ProviderUnavailable, match="still boots"):
        await asyncio.wait_for(provider.attach(ref), HANG_S)
