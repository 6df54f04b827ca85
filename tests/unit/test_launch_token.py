"""Who holds a sandbox reaches its server: the token is in the way's headers, and a client is one call away."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import GenericEnvClient, attach, probe, redact, registry, sandbox
from openenv_sandbox.client.target import auth_headers
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing.fake import FakeCloud
from tests.unit.launch_harness import nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.mark.anyio
@pytest.mark.parametrize("start", ["command", "exec"])
async def test_a_sandbox_gives_clients_of_its_server(cloud: FakeCloud, start: str) -> None:
    """Two clients one after the other; closing one ends its session and leaves the sandbox.

    Mutation: RunningSandbox.client binds no token, or its client stops the sandbox
    """
    async with sandbox("fake-env:1", provider=cloud.provider(start=start)) as box:
        for _ in range(2):
            async with await box.client() as env:
                assert isinstance(env, GenericEnvClient)
                assert env.sandbox is box
                await env.reset()
                assert (await env.step({"a": 1})).reward == 1.0
            assert len(cloud.live()) == 1
    await nothing_left(cloud)


@pytest.mark.anyio
async def test_the_way_to_the_server_carries_its_token(cloud: FakeCloud) -> None:
    """Whoever asks for the server's port is let in; other ports are told nothing.

    Mutation: RunningSandbox.endpoint adds no header, or adds it for every port
    """
    async with sandbox("fake-env:1", provider=cloud.provider()) as box:
        await (await box.client()).close()
        way = await box.endpoint()
        assert list(way.headers) == ["Authorization"]
        assert way.headers["Authorization"] not in repr(way)
        token = way.headers["Authorization"].removeprefix("Bearer ")
        async with GenericEnvClient(base_url=way.url, headers=way.headers) as env:
            await env.reset()
        assert (await probe.get(way, "/health", token=token, timeout=60)).status == 200
        assert (await box.endpoint(9)).headers == {}
        assert redact.mask(token) == redact.MASK


def test_a_token_is_sent_once() -> None:
    """Headers that carry the token already get no second one; where Authorization is the backend's, it steps aside.

    Mutation: auth_headers does not look whether the token is there
    """
    once = auth_headers({}, "t0ken-value")
    assert auth_headers(once, "t0ken-value") == once == {"Authorization": "Bearer t0ken-value"}
    aside = auth_headers({"authorization": "Basic x"}, "t0ken-value")
    assert auth_headers(aside, "t0ken-value") == aside
    assert aside == {"authorization": "Basic x", "X-OpenEnv-Token": "t0ken-value"}


@pytest.mark.anyio
@pytest.mark.parametrize("own", [True, False])
async def test_an_attached_sandbox_is_reached_too(cloud: FakeCloud, own: bool) -> None:
    """The token is in the 0600 file beside the journal, not in it nor in the ref; it survives being taken over.

    Mutation: Creation gives the journal no token, or attaching writes the file anew without it
    """
    provider = cloud.provider()
    box = await sandbox("fake-env:1", provider=provider)
    token = (await box.endpoint()).headers["Authorization"].removeprefix("Bearer ")
    ref = pickle.loads(pickle.dumps(box.ref))
    await box.detach()
    journal = await Journal.open()
    assert journal.folder is not None
    holding = [path for path in journal.folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert [path.parent.name for path in holding] == ["refs"]
    assert holding[0].stat().st_mode & 0o077 == 0
    assert token not in json.dumps([ref.id, ref.key, dict(ref.state), dict((await journal.full_ref(ref)).state)])
    with registry.registered(provider):
        for _ in range(2):
            taken = await attach(ref, own=own)
            async with await taken.client() as env:
                await env.reset()
            assert redact.mask(token) == redact.MASK
            await taken.detach()
        async with attach(ref) as mine:
            assert (await mine.endpoint()).headers["Authorization"] == f"Bearer {token}"
    await nothing_left(cloud)
    assert not holding[0].exists()
    assert redact.mask(token) == token


def test_the_blocking_face_gives_blocking_clients(cloud: FakeCloud) -> None:
    """The same without a loop.

    Mutation: BlockingSandbox hands out the client of the background loop
    """
    with sandbox("fake-env:1", provider=cloud.provider()).sync() as box:
        with box.client() as env:
            assert env.reset().reward == 0.0
        assert len(cloud.live()) == 1
    assert not cloud.live()
