"""Forks of a warm sandbox: as many as asked for or none, and nothing left in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import launch, live_refs, sandbox
from openenv_sandbox.client.generic import GenericEnvClient
from openenv_sandbox.errors import CapabilityError, ProviderError, UsageError
from openenv_sandbox.running import RunningSandbox
from openenv_sandbox.testing.fake import FakeCloud

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

REF = "fake/env:1"


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud
        assert not cloud.live()
        assert not [ref for ref in live_refs() if ref.scope.startswith(f"fake:{cloud.address}")]
        assert not [name for name in cloud.prepared if name.startswith("snap-")]


async def test_forks_have_the_files_and_a_server_of_their_own(cloud: FakeCloud) -> None:
    """What is written later in one is in no other; the variables are those of the first; snapshots go at the end.

    Mutation: `_Kept.let_go` drops nothing
    """
    async with launch(REF, provider=cloud.provider(), env={"MARK": "m"}) as env:
        await env.reset()
        await env.sandbox.write("warm", b"1")
        async with env.sandbox.fork(3) as boxes:
            assert len({box.ref.id for box in (env.sandbox, *boxes)}) == 4
            await env.sandbox.write("warm", b"2")
            for box in boxes:
                assert await box.read("warm") == b"1"
                assert (await box.exec("printf %s $MARK")).text() == "m"
                client = await box.client()
                await client.reset()
                await client.close()
            assert len([name for name in cloud.prepared if name.startswith("snap-")]) == 1
        assert len(cloud.live()) == 1
        assert (await env.reset()) is not None


async def test_forks_outlive_their_origin(cloud: FakeCloud) -> None:
    """Clients of each, connected; closing a client ends its sandbox, the last one the snapshot.

    Mutation: the forks use the origin's provider, which is closed with it
    """
    async with sandbox(REF, provider=cloud.provider()) as box:
        clients = await box.fork(2, client=GenericEnvClient)
    assert len(cloud.live()) == 2
    providers: list[Any] = [client.sandbox._provider for client in clients]
    for client in clients:
        assert not any(provider.closed for provider in providers)
        await client.reset()
        await client.close()
    assert all(provider.closed for provider in providers)


async def test_all_or_none(cloud: FakeCloud) -> None:
    """One that fails ends those that came, and is the error.

    Mutation: `_all` leaves the others alone
    """
    async with sandbox(REF, provider=cloud.provider()) as box:
        rule = cloud.faults.add("create", status=400, message="no more of them", skip=2)
        with pytest.raises(ProviderError, match="no more of them"):
            await box.fork(4)
        assert rule.hits == 1
        assert len(cloud.live()) == 1


async def test_a_backend_without_snapshots(cloud: FakeCloud) -> None:
    async with sandbox(REF, provider=cloud.provider(snapshot=False)) as box:
        with pytest.raises(CapabilityError, match="takes no snapshots") as caught:
            await box.fork(2)
        assert caught.value.field == "snapshot"
        with pytest.raises(UsageError):
            box.fork(0)


def test_blocking_forks(cloud: FakeCloud) -> None:
    with sandbox(REF, provider=cloud.provider()).sync() as box:
        with box.fork(2).sync() as boxes:
            assert all(isinstance(found.async_sandbox, RunningSandbox) for found in boxes)
        with box.fork(2, client=GenericEnvClient).sync() as clients:
            for client in clients:
                client.reset()
