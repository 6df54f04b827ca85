"""What only Runloop has: sizes sold together, network policies, boots that fail, labels that nothing filters by."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("runloop_api_client", reason="needs the Runloop SDK: pip install 'openenv[runloop]'")

from openenv_providers.runloop import RunloopProvider

from openenv_sandbox import image as images
from openenv_sandbox.errors import (
    CapabilityError,
    CreateTimeout,
    OpenEnvError,
    ProviderError,
    SandboxGone,
)
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.case import HANG_S
from tests.emulators.runloop_bench import OUR_KEY, emulated, made, run

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


# ------------------------------------------------------------------------------------------------------ the body


async def test_the_body_of_a_create(provider: RunloopProvider, face: RunloopFace) -> None:
    """The lifetime is the whole use, commands run as root, the tunnel asks for a token, the key is in the metadata.

    Mutation: keep_alive_time_seconds is left at the vendor's hour, or a secret goes into environment_variables
    """
    timers = {"ready": 30, "episode": 600.5, "margin": 60}
    sandbox = await made(provider, face, timeouts=timers, env={"A": "b"}, secrets={"S": "s3kret-canary"})
    (body,) = face.bodies
    assert body["metadata"]["oe-key"] == body["name"] == OUR_KEY
    assert face.requests == [OUR_KEY]
    assert body["launch_parameters"] == {
        "architecture": "x86_64",
        "keep_alive_time_seconds": 691,
        "user_parameters": {"uid": 0, "username": "root"},
    }
    assert (body["tunnel"], body["environment_variables"]) == ({"auth_mode": "authenticated"}, {"A": "b"})
    assert "s3kret-canary" not in json.dumps(body)
    assert sandbox.info.expires_at == pytest.approx(sandbox.info.created_at + 691)
    assert (sandbox.info.resources.cpus, sandbox.info.resources.memory_mb) == (1.0, 2048)
    assert (await run(sandbox, "id -u; echo $A"))[1] == b"0\nb\n"


@pytest.mark.parametrize(
    ("ports", "mode"),
    [
        ([], "open"),
        ([9000], "open"),
        ([{"number": 9000, "visibility": "private"}], "authenticated"),
    ],
)
async def test_a_tunnel_is_open_only_if_every_port_is(
    provider: RunloopProvider, face: RunloopFace, ports: Any, mode: str
) -> None:
    """One tunnel serves all ports of a devbox.

    Mutation: the first port decides
    """
    sandbox = await made(provider, face, exposure="public", ports=ports)
    assert face.bodies[0]["tunnel"] == {"auth_mode": mode}
    endpoint = await sandbox.endpoint(9000)
    assert endpoint.public == (mode == "open")
    assert bool(endpoint.headers) == (mode != "open")


async def test_where_a_tunnel_is(
    provider: RunloopProvider, face: RunloopFace, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's form of address, on its own domain, unless a gateway is set."""
    sandbox = await made(provider, face)
    key = face.devboxes[sandbox.ref.id].key
    assert (await sandbox.endpoint(9000)).url == f"https://9000-{key}.tunnel.127.0.0.1"
    monkeypatch.delenv("RUNLOOP_BASE_URL")
    assert (await asyncio.to_thread(RunloopProvider)).domain == "runloop.ai"
    other = await asyncio.to_thread(RunloopProvider, {"base_url": "https://api.runloop.pro/"})
    assert (other.domain, other.scope().split()[0]) == ("runloop.pro", "https://api.runloop.pro")


@pytest.mark.parametrize(
    ("wanted", "sold"),
    [
        ({"cpus": 1}, (1.0, 2048, None)),
        ({"cpus": 1.5}, (2.0, 4096, None)),
        ({"memory_mb": 1024}, (0.5, 1024, None)),
        ({"memory_mb": 5000}, (1.0, 6144, None)),
        ({"cpus": 0.25, "memory_mb": 30_000}, (4.0, 30_720, None)),
        ({"cpus": 16}, (16.0, 32_768, None)),
        ({"cpus": 3, "memory_mb": 2048, "disk_mb": 10_000}, (4.0, 8192, 10_240)),
        ({"disk_mb": 20_000}, (1.0, 2048, 20_480)),
    ],
)
def test_sizes_are_sold_together(wanted: dict[str, Any], sold: tuple[float, int, int | None]) -> None:
    """Never less than asked for, 2 to 8 GiB for each core, and the vendor takes it.

    Mutation: the missing half of a size is left out, or rounded down
    """
    from tests.emulators.faces.runloop_shapes import Launch

    spec = SandboxSpec(image="python:3.12", resources=wanted)
    found = RunloopProvider().fit(spec, images.parse("python:3.12")).resources
    assert (found.cpus, found.memory_mb, found.disk_mb) == sold
    Launch(resource_size_request="CUSTOM_SIZE", custom_cpu_cores=sold[0], custom_gb_memory=sold[1] // 1024)


def test_a_size_that_nobody_sells() -> None:
    with pytest.raises(CapabilityError, match="2 to 8 GiB") as caught:
        RunloopProvider().fit(SandboxSpec(image="x", resources={"memory_mb": 66_000}), images.parse("python:3.12"))
    assert caught.value.field == "resources"


async def test_a_size_is_granted(provider: RunloopProvider, face: RunloopFace) -> None:
    sandbox = await made(provider, face, resources={"cpus": 3, "memory_mb": 2048, "disk_mb": 10_000})
    found = sandbox.info.resources
    assert (found.cpus, found.memory_mb, found.disk_mb) == (4.0, 8192, 10_240)


# ---------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("network", "hosts", "cidrs"),
    [
        ("none", [], []),
        ({"mode": "allowlist", "hosts": ["pypi.org", "*.example.org"]}, ["pypi.org", "*.example.org"], []),
        (
            {"mode": "allowlist", "hosts": ["pypi.org"], "cidrs": ["10.0.0.0/8"]},
            ["pypi.org"],
            [{"cidr": "10.0.0.0/8", "ports": []}],
        ),
    ],
)
async def test_a_network_policy_of_its_own(
    provider: RunloopProvider, face: RunloopFace, network: Any, hosts: list[str], cidrs: list[Any]
) -> None:
    """Made before the devbox, removed after it, also by whoever knows the ref alone and after the devbox has ended.

    Mutation: the policy is left behind, or the devbox is made without it
    """
    sandbox = await made(provider, face, network=network)
    ((id, policy),) = face.policies.items()
    assert face.bodies[0]["launch_parameters"]["network_policy_id"] == id
    assert (policy["egress"]["allow_all"], policy["egress"]["allowed_hostnames"]) == (False, hosts)
    assert policy["egress"]["allowed_cidrs"] == cidrs
    await asyncio.to_thread(face.engine.call, face.engine.delete(sandbox.ref.id))
    await provider.delete(sandbox.ref)
    assert face.policies == {}


async def test_no_policy_where_none_is_needed(provider: RunloopProvider, face: RunloopFace) -> None:
    await provider.delete((await made(provider, face)).ref)
    assert face.policies == {}
    assert not [path for path in face.paths if "network" in path]


@pytest.mark.parametrize(("fault", "left"), [({"status": 400}, 0), ({"when": "after", "status": 0}, 1)])
async def test_the_policy_of_a_failed_create(
    provider: RunloopProvider, face: RunloopFace, fault: dict[str, Any], left: int
) -> None:
    """Removed with a create that certainly failed; kept for the devbox that a lost reply may have left, which has it.

    Mutation: the policy is dropped while a devbox may run with it
    """
    face.engine.faults.add("create", **fault)
    with pytest.raises(OpenEnvError) as caught:
        await made(provider, face, network="none")
    assert (len(face.policies), caught.value.outcome) == (left, "unknown" if left else "failed")
    assert len([path for path in face.paths if path.startswith("/v1/network-policies/")]) == 1 - left
    for ref in await provider.find(OUR_KEY):
        await provider.delete(ref)
    assert (face.policies, face.engine.alive()) == ({}, 0)


async def test_a_policy_of_a_devbox_that_never_was(provider: RunloopProvider, face: RunloopFace) -> None:
    """The request was lost on its way: the policy is found by key and by labels, is no devbox, and is removed.

    Mutation: nobody finds it, or it is taken from under a devbox that came late
    """
    face.engine.faults.add("create", when="before", status=0)
    with pytest.raises(OpenEnvError):
        await made(provider, face, network="none")
    (ref,) = await provider.find(OUR_KEY)
    (info,) = [info async for info in provider.list({"oe-install": "abc123"})]
    assert (info.ref, info.status, info.labels["oe-key"]) == (ref, "failed", OUR_KEY)
    assert [info async for info in provider.list({"oe-install": "other"})] == []
    with pytest.raises(SandboxGone, match="network policy only"):
        await provider.attach(ref)
    await made(provider, face, network="none")
    assert len(face.policies) == 2
    await provider.delete(ref)
    await provider.delete(ref)
    assert (face.policies, face.engine.alive()) == ({}, 0)


async def test_a_policy_that_is_in_use_or_not_ours(provider: RunloopProvider, face: RunloopFace) -> None:
    """Neither is listed beside the devbox, nor removed with another.

    Mutation: gc removes the user's own policies
    """
    sandbox = await made(provider, face, network="none")
    (policy,) = face.policies.values()
    for number, (name, text) in enumerate([("mine", None), (OUR_KEY, "not json"), (OUR_KEY, "[1]"), ("x", "{}")]):
        id = f"npol_{number}"
        face.policies[id] = {**policy, "id": id, "name": name, "description": text}
    assert [info.ref async for info in provider.list({})] == [sandbox.ref]
    assert await provider.find(OUR_KEY) == [sandbox.ref]
    await provider.delete(sandbox.ref)
    assert len(face.policies) == 4


# ----------------------------------------------------------------------------------------------------- booting


async def test_a_devbox_that_does_not_boot(provider: RunloopProvider, face: RunloopFace) -> None:
    """Says why, and leaves nothing: neither devbox nor policy.

    Mutation: what failed to boot stays, or passes for running
    """
    face.boots.append("failure")
    with pytest.raises(ProviderError, match="did not boot: failure, health_check_failed") as caught:
        await made(provider, face, network="none")
    assert (caught.value.outcome, caught.value.retryable) == ("failed", True)
    assert (face.engine.alive(), face.policies) == (0, {})


async def test_a_boot_without_end(provider: RunloopProvider, face: RunloopFace) -> None:
    """The create timer ends it although the vendor answers every question in time.

    Mutation: the wait for running has no deadline
    """
    face.hold_s = 0.05
    face.boots.append("initializing")
    with pytest.raises(CreateTimeout, match=r"within 0\.5 s") as caught:
        await asyncio.wait_for(made(provider, face, timeouts={"create": 0.5}), HANG_S)
    assert (caught.value.outcome, face.engine.alive()) == ("failed", 0)


async def test_removing_what_did_not_boot_fails(provider: RunloopProvider, face: RunloopFace) -> None:
    """Then something may exist, and the error says so."""
    face.boots.append("suspended")
    face.engine.faults.add("delete", status=500)
    with pytest.raises(ProviderError, match="removing it failed too") as caught:
        await made(provider, face)
    assert caught.value.outcome == "unknown"


# ----------------------------------------------------------------------------------------------------- listings


async def test_pages_of_a_listing(provider: RunloopProvider, face: RunloopFace) -> None:
    """Every page of every status that lives is read, and compared here; what has ended costs nothing.

    Mutation: only the first page is read, or labels are taken for a filter of the vendor's
    """
    face.page = 2
    keys = [f"oe-aaaaaaaa-00000000000{number}" for number in range(6)]
    sandboxes = [await made(provider, face, key=key, labels={"user": str(n % 2)}) for n, key in enumerate(keys)]
    await provider.delete(sandboxes[5].ref)
    face.lists.clear()
    assert len([info async for info in provider.list({"oe-install": "abc123"})]) == 5
    assert {query["status"] for query in face.lists}.isdisjoint({"shutdown", "failure"})
    assert {info.ref.key async for info in provider.list({"user": "1"})} == {keys[1], keys[3]}
    assert [info async for info in provider.list({"oe-install": "other"})] == []
    assert [ref.id for ref in await provider.find(keys[4])] == [sandboxes[4].ref.id]
    assert await provider.find(keys[5]) == []


@pytest.mark.parametrize(("before", "asked_for"), [("provisioning", "initializing"), ("suspended", "resuming")])
async def test_nothing_moves_past_a_listing(
    provider: RunloopProvider, face: RunloopFace, before: str, asked_for: str
) -> None:
    """A devbox begins to run while the statuses are asked one after the other.

    Mutation: "running" is asked once
    """
    sandbox = await made(provider, face)
    devbox = face.devboxes[sandbox.ref.id]
    devbox.status = "initializing" if before == "provisioning" else "resuming"

    def move(status: str) -> None:
        if status == asked_for:
            devbox.status = "running"

    face.on_list = move
    assert [ref.id for ref in await provider.find(OUR_KEY)] == [sandbox.ref.id]


async def test_one_of_somebody_else(provider: RunloopProvider, face: RunloopFace) -> None:
    """Devboxes without our labels have no key, and are in no listing of ours."""
    sandbox = await made(provider, face)
    face.devboxes[sandbox.ref.id].asked.metadata.clear()
    (info,) = [info async for info in provider.list({})]
    assert (info.ref.key, info.labels) == (None, {})
    assert [info async for info in provider.list({"oe-install": "abc123"})] == []
