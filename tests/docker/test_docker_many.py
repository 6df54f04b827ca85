"""Many sandboxes at once, at full size: counts are asserted, never times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import launch, live_refs, sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from openenv_sandbox.provider import Prepared

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.full]

HI: dict[str, Any] = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}


@pytest.fixture(scope="module")
def with_volume(engine: docker.DockerClient, echo_image: Prepared) -> Iterator[str]:
    """echo_env with a VOLUME."""
    container = engine.containers.create(echo_image.ref)
    container.commit("openenv-test/many", "volume", changes=["VOLUME /data"])
    container.remove()
    yield "openenv-test/many:volume"
    engine.images.remove("openenv-test/many:volume", force=True)


def there(engine: docker.DockerClient, image: str) -> tuple[int, set[str], set[str]]:
    """Containers of the image; volumes and networks of the daemon."""
    containers = engine.containers.list(all=True, filters={"ancestor": image}, ignore_removed=True)
    volumes = {str(volume.name) for volume in engine.volumes.list()}
    return len(containers), volumes, {str(network.name) for network in engine.networks.list()}


def networks_of(engine: docker.DockerClient, identifier: str) -> list[str]:
    return list(engine.api.inspect_container(identifier)["NetworkSettings"]["Networks"])


@pytest.mark.parametrize("number", [16, 64])
async def test_launches_at_once(with_volume: str, engine: docker.DockerClient, number: int) -> None:
    """Every one is connected and stepped while all live; then no container, volume or network is left.

    Scenario: J08
    Mutation: the SDK's pool of ten connections and one thread for all of them
    """
    before = await asyncio.to_thread(there, engine, with_volume)
    all_there, inside = asyncio.Event(), 0
    ids: set[str] = set()

    async def episode() -> None:
        nonlocal inside
        timeouts = {"create": 900, "ready": 900, "episode": 3600}
        async with launch(with_volume, provider="docker", timeouts=timeouts) as env:
            ids.add(env.sandbox.ref.id)
            inside += 1
            if inside == number:
                all_there.set()
            await all_there.wait()
            await env.reset()
            assert "hi" in str((await env.step(HI)).observation)

    tasks = [asyncio.ensure_future(episode()) for _ in range(number)]
    full = asyncio.ensure_future(all_there.wait())
    # One that fails must not make the others wait for ever.
    done, _ = await asyncio.wait({full, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    if full not in done:
        for task in (full, *tasks):
            task.cancel()
        await asyncio.gather(full, *tasks, return_exceptions=True)
        done.pop().result()
    await asyncio.gather(*tasks)
    assert len(ids) == number
    assert not [ref for ref in live_refs() if ref.provider == "docker"]
    count, volumes, networks = await asyncio.to_thread(there, engine, with_volume)
    assert count == before[0]
    assert volumes <= before[1]
    assert networks <= before[2]


async def test_sixty_sandboxes_make_no_network_and_leave_no_volume(
    with_volume: str, engine: docker.DockerClient
) -> None:
    """Two rounds of thirty, each with a volume of its own while it lives: all on one network, nothing left.

    Scenario: J09, A12
    Mutation: remove_container without v=True, or a network made for each sandbox
    """
    count, volumes, networks = await asyncio.to_thread(there, engine, with_volume)
    for _ in range(2):
        boxes = await asyncio.gather(
            *(
                sandbox(with_volume, provider="docker", command=["sleep", "600"], timeouts={"create": 900})
                for _ in range(30)
            )
        )
        now = await asyncio.to_thread(there, engine, with_volume)
        assert now[0] == count + 30
        assert len(now[1] - volumes) >= 30
        attached = {name for box in boxes for name in await asyncio.to_thread(networks_of, engine, box.ref.id)}
        assert attached == {"bridge"}
        assert now[2] <= networks
        await asyncio.gather(*(box.stop() for box in boxes))
    after = await asyncio.to_thread(there, engine, with_volume)
    assert after[0] == count
    assert after[1] <= volumes
