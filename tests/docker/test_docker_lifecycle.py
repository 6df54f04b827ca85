"""What is made, what is left, and what happens when it goes wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import docker
import pytest
import requests
from openenv_providers import _docker_images
from openenv_providers._docker_daemon import translate

from openenv_sandbox.errors import (
    CapabilityError,
    ExecError,
    ImageError,
    OpenEnvError,
    ProviderError,
    QuotaExceeded,
    SandboxGone,
)
from openenv_sandbox.image import parse
from openenv_sandbox.provider import Prepared
from openenv_sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.provider import Sandbox
    from tests.docker.docks import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

CANARY = "s3kret-canary-of-docker"
PLAIN: dict[str, Any] = {"env": {}, "cwd": None, "user": None, "stdin": None}


def quiet(*_: object) -> None:
    return None


@pytest.fixture
def volume_image(dock: Docker) -> Iterator[Prepared]:
    """An image with a VOLUME."""
    container = dock.engine.containers.create(dock.prepared.ref, labels={"oe-run": dock.run})
    name = f"openenv/volume-test:{dock.run}"
    container.commit(*name.split(":"), changes=["VOLUME /data"])
    container.remove()
    yield Prepared(name)
    dock.engine.images.remove(name, force=True)


async def test_anonymous_volumes_go_with_the_container(dock: Docker, volume_image: Prepared) -> None:
    """Twenty sandboxes of an image with a VOLUME leave no volume, container or network.

    Scenario: A12
    Mutation: remove_container without v=True
    """
    networks = len(await asyncio.to_thread(dock.engine.networks.list))
    volumes: list[str] = []
    for _ in range(20):
        sandbox = await dock.create(prepared=volume_image)
        mounts = (await dock.provider.inspect(sandbox.ref))["Mounts"]
        volumes += [mount["Name"] for mount in mounts if mount["Type"] == "volume"]
        await sandbox.delete()
    assert len(volumes) == 20
    there = {volume.name for volume in await asyncio.to_thread(dock.engine.volumes.list)}
    assert there.isdisjoint(volumes)
    assert dock.containers() == []
    assert len(await asyncio.to_thread(dock.engine.networks.list)) <= networks


async def kill_one(dock: Docker) -> None:
    sandbox = await dock.create(command=("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"))
    try:
        # 50 x the bound of the report: it tells a hang from none.
        await asyncio.wait_for(sandbox.exec_raw(["sh", "-c", "kill 1; sleep 240"], on_output=quiet, **PLAIN), 250)
        raise AssertionError("the command outlived its container")
    except (SandboxGone, ExecError):
        pass
    with pytest.raises(SandboxGone):
        await sandbox.exec_raw(["true"], on_output=quiet, **PLAIN)
    assert (await sandbox.wait_exit()).code is not None
    await sandbox.delete()


async def test_exec_that_ends_its_container(dock: Docker) -> None:
    """``kill 1`` twenty times: each is a typed error, none hangs.

    Scenario: F06
    Mutation: the exit code is polled without looking at the container
    """
    for _ in range(5):
        await asyncio.gather(*(kill_one(dock) for _ in range(4)))


@pytest.mark.full
async def test_exec_that_ends_its_container_a_hundred_times(dock: Docker) -> None:
    """The unscaled number.

    Scenario: F06
    Mutation: the exit code is polled without looking at the container
    """
    for _ in range(25):
        await asyncio.gather(*(kill_one(dock) for _ in range(4)))


async def many(dock: Docker, number: int) -> None:
    made = await asyncio.gather(*(dock.create(resources={"memory_mb": 64}) for _ in range(number)))
    assert len({sandbox.ref.id for sandbox in made}) == len(dock.containers()) == number
    await asyncio.gather(*(sandbox.delete() for sandbox in made))
    assert dock.containers() == []


async def test_many_at_once(dock: Docker) -> None:
    """Sixteen creates at once all succeed.

    Scenario: J08
    Mutation: the SDK's pool of ten connections and one thread for all of them
    """
    await many(dock, 16)


@pytest.mark.full
async def test_forty_at_once(dock: Docker) -> None:
    """The unscaled number.

    Scenario: J08
    Mutation: the SDK's pool of ten connections and one thread for all of them
    """
    await many(dock, 40)


async def test_no_network_of_its_own(dock: Docker) -> None:
    """A sandbox makes no network; a daemon without free ranges is an error that says how to get some.

    Scenario: J09
    Mutation: the row "address pool" is taken out of the table
    """
    sandbox = await dock.create()
    networks = (await dock.provider.inspect(sandbox.ref))["NetworkSettings"]["Networks"]
    assert list(networks) == ["bridge"]
    said = "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network"
    error = translate(_status(500, said), what="creating")
    assert isinstance(error, QuotaExceeded)
    assert "docker network prune" in str(error)
    assert "default-address-pools" in str(error)


def _status(status: int, text: str) -> Exception:
    import docker.errors
    import requests

    response = requests.Response()
    response.status_code = status
    return docker.errors.APIError("x", response=response, explanation=text)


async def test_gpu_without_a_runtime_leaves_nothing(dock: Docker) -> None:
    """Docker refuses at start and keeps the container; it is removed.

    Mutation: the container is not removed after a failed start
    """
    with pytest.raises(CapabilityError, match="device driver") as caught:
        await dock.create(resources={"gpus": "*:1"})
    assert caught.value.field == "resources.gpus"
    assert caught.value.outcome == "failed"
    with pytest.raises(CapabilityError, match="H100"):
        await dock.create(resources={"gpus": "H100:2"})
    with pytest.raises(OpenEnvError):
        await dock.create(user="no-such-user")
    assert dock.containers() == []


async def test_a_second_create_adopts(dock: Docker) -> None:
    """One key is one container, also when the first create was cut off between create and start."""
    key = dock.key()
    first = await dock.create(key=key)
    assert (await dock.create(key=key)).ref == first.ref
    late = dock.key()
    await asyncio.to_thread(
        lambda: dock.engine.containers.create(
            dock.prepared.ref, "sleep 60", name=late, labels={"oe-key": late, "oe-run": dock.run}
        )
    )
    found = await dock.provider.find(late)
    assert len(found) == 1
    adopted = await dock.create(key=late)
    assert adopted.ref == found[0]
    assert adopted.info.status == "running"


async def test_a_name_of_somebody_else_is_not_adopted(dock: Docker) -> None:
    key = dock.key()
    stranger = dock.engine.containers.create(dock.prepared.ref, name=key, labels={"oe-run": dock.run})
    with pytest.raises(ProviderError, match="already in use"):
        await dock.create(key=key)
    stranger.reload()
    assert stranger.status == "created"


async def test_a_container_of_somebody_else_with_our_labels_is_not_ours(dock: Docker) -> None:
    """Committed from a sandbox, an image hands its labels on; a container made from it belongs to who made it.

    Scenario: A04
    Mutation: _docker_convert takes the label oe-key for the key whatever the container is called
    """
    box = await dock.create()
    assert box.ref.key is not None
    image = await asyncio.to_thread(lambda: dock.engine.containers.get(box.ref.id).commit("openenv-test", dock.run))
    try:
        theirs = await asyncio.to_thread(dock.engine.containers.create, image, ["sleep", "600"])
        assert theirs.labels["oe-key"] == box.ref.key
        assert await dock.provider.find(box.ref.key) == [box.ref]
        assert [info.ref async for info in dock.provider.list({"oe-run": dock.run})] == [box.ref]
        attached = await dock.provider.attach(replace(box.ref, id=str(theirs.id)))
        assert attached.ref.key is None
        await asyncio.to_thread(theirs.remove, force=True)
    finally:
        await box.delete()
        await asyncio.to_thread(dock.engine.images.remove, str(image.id), force=True)


async def test_a_removal_that_does_not_end_is_no_success(dock: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody else's removal hangs the container is there: the row must stay.

    Scenario: A08
    Mutation: delete returns when the wait is over
    """
    from openenv_providers import docker as module

    box = await dock.create()
    monkeypatch.setattr(module, "_GONE_S", 0.1)
    api = await asyncio.to_thread(dock.provider.daemon.client)

    def busy(*_: Any, **__: Any) -> None:
        response = requests.Response()
        response.status_code = 409
        raise docker.errors.APIError("409", response, "removal of container x is already in progress")

    with monkeypatch.context() as patch:
        patch.setattr(api, "remove_container", busy)
        with pytest.raises(ProviderError, match="still removing") as caught:
            await box.delete()
    assert (caught.value.outcome, caught.value.retryable) == ("unknown", True)
    await box.delete()


async def test_deleting_is_idempotent_and_waits_for_another_delete(dock: Docker) -> None:
    sandbox = await dock.create()
    await asyncio.gather(*(dock.provider.delete(sandbox.ref) for _ in range(8)))
    assert dock.containers() == []
    await sandbox.delete()
    with pytest.raises(SandboxGone):
        await dock.provider.attach(sandbox.ref)


async def test_what_a_container_is_given(dock: Docker) -> None:
    """Defaults that existing images survive; sizes; the image's user."""
    sandbox = await dock.create(resources={"cpus": 0.5, "memory_mb": 128}, user="65534", workdir="/tmp", env={"A": "b"})
    found = await dock.provider.inspect(sandbox.ref)
    host, config = found["HostConfig"], found["Config"]
    assert host["Init"] is True
    assert (host["PidsLimit"], host["ShmSize"]) == (4096, 1 << 30)
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (500_000_000, 128 << 20, 128 << 20)
    assert host["CapDrop"] == ["NET_RAW"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (config["User"], config["WorkingDir"]) == ("65534", "/tmp")
    assert "A=b" in config["Env"]
    assert sandbox.info.resources is not None
    assert (sandbox.info.resources.cpus, sandbox.info.resources.memory_mb) == (0.5, 128)
    assert "disk_mb" not in dock.provider.capabilities.sizes.limits


async def test_a_server_that_took_too_much_memory(dock: Docker) -> None:
    """The end says that it was memory, which no exit code does.

    Mutation: wait_exit does not look at OOMKilled
    """
    eat = ("sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo $x")
    sandbox = await dock.create(command=eat, resources={"memory_mb": 32})
    ended = await asyncio.wait_for(sandbox.wait_exit(), 60)
    assert ended.reason == "out of memory"
    assert "(out of memory)" in str(ended)
    await sandbox.delete()


async def run(sandbox: Sandbox, *argv: str) -> tuple[int | None, bytes]:
    out: list[bytes] = []
    result = await sandbox.exec_raw(argv, on_output=lambda _, data: out.append(data), **PLAIN)
    return result.exit_code, b"".join(out)


async def test_strict(dock: Docker) -> None:
    """The strict profile: no capability, files read-only but for the usual temporary folders."""
    sandbox = await dock.create(hardening="strict")
    code, _ = await run(sandbox, "sh", "-c", "echo x > /tmp/a && echo x > /run/a && echo x > /var/tmp/a")
    assert code == 0
    assert (await run(sandbox, "sh", "-c", "echo x > /app/a"))[0] != 0
    assert b"CapEff:\t0000000000000000" in (await run(sandbox, "cat", "/proc/self/status"))[1]


@pytest.mark.parametrize("secret", [False, True])
async def test_a_snapshot_keeps_files_and_no_variables(dock: Docker, secret: bool) -> None:
    """A snapshot boots with the files and start command; labels and variables of the first sandbox stay behind.

    Scenario: M01
    Mutation: a sandbox with variables of its own is committed like any other
    """
    fields: dict[str, Any] = {"env": {"PLAIN": "1"}, "secrets": {"API_KEY": CANARY}} if secret else {}
    sandbox = await dock.create(labels={"who": "first"}, **fields)
    assert (await run(sandbox, "sh", "-c", "echo kept > /app/kept"))[0] == 0
    prepared = await sandbox.snapshot()
    assert (await dock.provider.inspect(sandbox.ref))["State"]["Status"] == "running"
    image = await asyncio.to_thread(dock.engine.images.get, prepared.ref)
    assert CANARY not in json.dumps([image.attrs, image.history()])
    assert prepared.ref in [kept.ref for kept in await dock.provider.list_prepared()]
    again = await dock.create(prepared=prepared)
    assert (await run(again, "cat", "/app/kept"))[1] == b"kept\n"
    assert again.info.labels.get("who", "") == ""
    assert len(await dock.provider.find(str(sandbox.ref.key))) == 1
    await again.delete()
    if not secret:
        assert (await sandbox.snapshot()).ref != prepared.ref
    await dock.provider.drop(prepared)
    await dock.provider.drop(prepared)


async def test_secrets_are_in_no_image_and_no_error(dock: Docker) -> None:
    """What a sandbox is given as a secret is in no history, and in no text of an error.

    Scenario: M01
    Mutation: the arguments of the create are part of its error
    """
    image = await asyncio.to_thread(dock.engine.images.get, dock.prepared.ref)
    before = json.dumps([image.attrs, image.history()])
    assert "API_KEY" not in before
    with pytest.raises(OpenEnvError) as caught:
        await dock.create(secrets={"API_KEY": CANARY}, user="no-such-user")
    text = str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)
    assert CANARY not in text


@pytest.mark.parametrize("pull", ["missing", "always"])
async def test_an_image_that_nobody_has(dock: Docker, pull: Any) -> None:
    """The error says what the registry, or the lack of one, really answered."""
    ref = "127.0.0.1:1/openenv/certainly-not-there:0"
    lines: list[str] = []
    with pytest.raises(ImageError, match="connection refused") as caught:
        await dock.provider.prepare(SandboxSpec(image=ref, pull=pull), parse(ref), on_log=lines.append)
    assert "registry cannot be reached" in str(caught.value.hint)
    assert lines == [f"pulling {ref}"]
    here = parse(dock.prepared.ref)
    known = SandboxSpec(image=dock.prepared.ref)
    assert (await _docker_images.ensure(dock.provider.daemon, here, quiet, known)).digest == dock.prepared.digest


async def test_the_end_of_the_main_process(dock: Docker) -> None:
    sandbox = await dock.create(command=("sh", "-c", "echo dying words >&2; exit 17"))
    ended = await sandbox.wait_exit()
    assert (ended.code, ended.tail) == (17, b"dying words\n")
    with pytest.raises(SandboxGone):
        await sandbox.endpoint(8000)
    await sandbox.delete()
    with pytest.raises(SandboxGone):
        await sandbox.wait_exit()


@pytest.mark.usefixtures("no_blocking")
async def test_the_loop_is_never_blocked(dock: Docker) -> None:
    sandbox = await dock.create()
    assert await run(sandbox, "echo", "hi") == (0, b"hi\n")
    waiting = asyncio.ensure_future(sandbox.wait_exit())
    endpoint = await sandbox.endpoint(8000)
    await endpoint.aclose()
    await sandbox.pause()
    await sandbox.resume()
    await sandbox.logs()
    await dock.provider.drop(await sandbox.snapshot())
    await sandbox.delete()
    await asyncio.wait([waiting], timeout=60)
    assert waiting.done()
    waiting.exception()


async def test_waiting_leaves_no_thread_behind(dock: Docker) -> None:
    import threading

    sandbox = await dock.create()
    before = threading.active_count()
    waits = [asyncio.ensure_future(sandbox.wait_exit()) for _ in range(20)]
    await asyncio.sleep(0.2)
    assert threading.active_count() <= before
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
