"""Azure Container Apps Sandboxes: the second call that gives a sandbox its end, suspension, and what create sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("azure.containerapps.sandbox")

from openenv_providers import _aca_preview as preview
from openenv_providers._aca_sandbox import info

from openenv_sandbox import reaper
from openenv_sandbox.errors import CapabilityError, ExecError, FileError, ProviderError, ProviderUnavailable
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import Image
from tests.emulators.faces import aca_case
from tests.emulators.proof_faults import DAY_S, VICTIM
from tests.emulators.proof_stage import Stage, reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def stage(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with aca_case.emulated(engine) as emulated:
        for name, value in emulated.env.items():
            monkeypatch.setenv(name, value)
        stage = Stage(emulated)
        yield stage
        assert stage.unused() == []
        assert stage.boxes() == []


async def test_killed_before_it_had_an_end(stage: Stage) -> None:
    """A child is killed between create and the call that sets the end: the sandbox only suspends, and gc removes it.

    Scenario: A04
    Mutation: the labels are set by the second call, or gc trusts the vendor's timers
    """
    hold = stage.faults.add("lifecycle", hang=True)
    victim = await stage.victim(VICTIM)
    try:
        await reached(hold)
    finally:
        victim.kill()
        await victim.communicate()
    engine, (box,) = stage.engine, stage.boxes()
    assert "autoDeletePolicy" not in box.data["life"]
    engine.clock.advance(3 * DAY_S)
    assert (box.state, engine.alive()) == ("paused", 1), "nothing but us ends it"
    journal = await Journal.open()
    (row,) = await journal.rows()
    assert (row.state, row.alive) == ("intent", False)
    provider = await stage.make()
    try:
        report = await reaper.gc(journal, providers=[provider])
    finally:
        await provider.aclose()
    assert [item.id for item in report.removed] == [box.id]
    assert engine.alive() == 0
    hold.release()


async def test_its_end_cannot_be_set(stage: Stage) -> None:
    """The second call fails: what the first made is removed, and the error says that nothing is left.

    Mutation: a sandbox without an end is handed out, or left
    """
    failed = stage.faults.add("lifecycle", status=400)
    with pytest.raises(ProviderError) as caught:
        await stage.sandbox()
    assert failed.hits == 1
    assert (caught.value.outcome, caught.value.retryable) == ("failed", False)
    await stage.nothing_left()


async def test_its_end_cannot_be_set_at_once(stage: Stage) -> None:
    """A transient failure of the second call: the first sandbox is removed, then another is made.

    Mutation: the outcome stays unknown, so that the half-made one is adopted
    """
    created = stage.count("create")
    stage.faults.add("lifecycle", status=503)
    async with stage.sandbox() as sandbox:
        assert created.hits == 2
        assert [box.id for box in stage.boxes()] == [sandbox.ref.id]
        assert "autoDeletePolicy" in stage.box(sandbox.ref).data["life"]
    await stage.nothing_left()


async def test_its_end_cannot_be_set_nor_it_be_removed(stage: Stage) -> None:
    """Removing it fails as well: the error says so, and that something is left, which the key leads to.

    Mutation: the outcome of a create that could not be undone is ``failed``
    """
    stage.faults.add("lifecycle", status=400)
    left = stage.faults.add("delete", status=500)
    provider = await stage.make()
    case = stage.emulated.case()
    spec = case.make_spec(labels={"oe-key": "oe-12345678-123456789012"})
    prepared = await provider.prepare(spec, Image("ref", stage.emulated.light), on_log=lambda line: None)
    with pytest.raises(ProviderError) as caught:
        await provider.create(prepared, spec, key="oe-12345678-123456789012")
    assert "removing it failed too" in str(caught.value)
    (ref,) = await provider.find("oe-12345678-123456789012")
    await provider.delete(ref)
    await provider.aclose()
    assert (caught.value.outcome, left.hits) == ("unknown", 1)


async def test_what_failed_is_not_listed_yet(stage: Stage) -> None:
    """The second call fails while no listing shows the sandbox: it is removed by its id.

    Mutation: a create is undone by its key alone
    """
    stage.faults.add("create", late=3600.0)
    stage.faults.add("lifecycle", status=400)
    with pytest.raises(ProviderError) as caught:
        await stage.sandbox()
    assert caught.value.outcome == "failed"
    assert stage.boxes() == []


async def test_what_never_ran_is_not_listed_yet(stage: Stage) -> None:
    """Waiting until it runs fails while no listing shows it: the error says that something may exist.

    Mutation: a look-up that finds nothing proves that there is nothing
    """
    stage.faults.add("create", late=3600.0)
    stage.faults.add("info", status=400)
    provider = await stage.make()
    spec = stage.emulated.case().make_spec(labels={"oe-key": "oe-12345678-123456789012"})
    prepared = await provider.prepare(spec, Image("ref", stage.emulated.light), on_log=lambda line: None)
    with pytest.raises(ProviderError) as caught:
        await provider.create(prepared, spec, key="oe-12345678-123456789012")
    assert caught.value.outcome == "unknown"
    assert await provider.find("oe-12345678-123456789012") == []
    await provider.aclose()
    (box,) = stage.boxes()
    stage.engine.call(stage.engine.delete(box.id))


async def test_both_ends_are_set(stage: Stage) -> None:
    """Suspended when unused for ``idle_s``, deleted after the whole lifetime more; never sooner than the use.

    Mutation: the delete interval is that of the suspension
    """
    timers = {"ready": 60.0, "episode": 600.0, "margin": 40.0}
    async with stage.sandbox(timeouts=timers) as sandbox:
        life = stage.box(sandbox.ref).data["life"]
    assert life["autoSuspendPolicy"] == {"enabled": True, "interval": 900, "mode": "Memory"}
    assert life["autoDeletePolicy"] == {"enabled": True, "deleteIntervalInSeconds": 700}


async def test_suspended_for_want_of_use(stage: Stage) -> None:
    """What the service suspended while its owner lives is woken; what somebody paused stays as it is.

    Mutation: keep_alive takes 409 for an end, or wakes what was paused on purpose
    """
    async with stage.sandbox() as sandbox:
        inner, box = sandbox._sandbox, stage.box(sandbox.ref)
        stage.engine.clock.advance(901)
        assert box.state == "paused"
        with pytest.raises(ExecError, match="SandboxNotRunning"):
            await sandbox.exec("true")
        await inner.keep_alive()
        assert box.state == "running"
        assert (await sandbox.exec("echo awake")).text() == "awake\n"
        await sandbox.pause()
        await inner.keep_alive()
        assert box.state == "paused"
        await sandbox.resume()
        assert box.state == "running"


async def test_no_secret_is_sent_with_create(stage: Stage) -> None:
    """Variables given at create can be read back: neither the token nor a secret is among them.

    Scenario: M01
    Mutation: ``plain_secrets`` is merged into the environment of create
    """
    async with stage.launch(env={"OE_PLAIN": "seen"}, secrets={"OE_SECRET": "s3kret-canary"}) as env:
        await env.reset()
        body = stage.box(env.sandbox.ref).data["body"]
        assert body["environment"]["OE_PLAIN"] == "seen"
        assert "s3kret-canary" not in str(body)
        assert env._token
        assert env._token not in str(body)
    provider, key = await stage.make(), "oe-12345678-123456789012"
    spec = stage.emulated.case().make_spec(labels={"oe-key": key}, secrets={"OE_SECRET": "s3kret-canary"})
    prepared = await provider.prepare(spec, Image("ref", stage.emulated.light), on_log=lambda line: None)
    made = await provider.create(prepared, spec, key=key)
    assert "s3kret-canary" not in str(stage.box(made.ref).data["body"])
    await provider.delete(made.ref)
    await provider.aclose()


@pytest.mark.parametrize(
    ("network", "policy"),
    [
        ("full", {"defaultAction": "Allow", "hostRules": [{"pattern": preview.METADATA, "action": "Deny"}]}),
        ("none", {"defaultAction": "Deny"}),
        (
            {"mode": "allowlist", "hosts": ("pypi.org", "*.example.org")},
            {
                "defaultAction": "Deny",
                "hostRules": [
                    {"pattern": "pypi.org", "action": "Allow"},
                    {"pattern": "*.example.org", "action": "Allow"},
                ],
            },
        ),
    ],
)
async def test_network(stage: Stage, network: Any, policy: dict[str, Any]) -> None:
    """The policy is sent with create; the machine's identity is out of reach even of a full network.

    Mutation: the policy is set afterwards, or the default stays Allow for an allowlist
    """
    async with stage.sandbox(network=network) as sandbox:
        assert stage.box(sandbox.ref).data["body"]["egressPolicy"] == policy


async def test_sizes(stage: Stage) -> None:
    """Cores as millicores, memory as MiB, disk rounded up to GiB; the cores follow the memory, and are told back.

    Mutation: sizes are rounded down, or memory beyond 2 GiB for each core is sent
    """
    async with stage.sandbox(resources={"memory_mb": 5000, "disk_mb": 20_500}) as sandbox:
        sent = stage.box(sandbox.ref).data["body"]["resources"]
        assert sent == {"cpu": "2442m", "memory": "5000Mi", "disk": "21Gi"}
        granted = sandbox.info.resources
        assert (granted.cpus, granted.memory_mb, granted.disk_mb) == (2.442, 5000, 21 * 1024)
    async with stage.sandbox(resources={"cpus": 0.5}) as sandbox:
        assert stage.box(sandbox.ref).data["body"]["resources"] == {"cpu": "500m", "memory": "1024Mi"}


@pytest.mark.parametrize(("field", "asked"), [("cpus", {"cpus": 17}), ("memory_mb", {"memory_mb": 33_000})])
async def test_sizes_that_are_not_sold(stage: Stage, field: str, asked: dict[str, Any]) -> None:
    """More than 16 cores, or than 2 GiB for each of them, is refused before anything is created."""
    created = stage.count("create")
    with pytest.raises(CapabilityError) as caught:
        await stage.sandbox(resources=asked)
    assert caught.value.field == f"resources.{field}"
    assert created.hits == 0


async def test_a_private_sandbox_has_no_port(stage: Stage) -> None:
    """Without a server nothing has to be public: no port is opened, and a later endpoint is refused.

    Scenario: C09
    Mutation: create opens the port whatever its visibility, or endpoint opens one later
    """
    async with stage.sandbox(exposure="private") as sandbox:
        assert (await sandbox.exec("echo works")).text() == "works\n"
        with pytest.raises(CapabilityError) as caught:
            await sandbox.endpoint()
        assert caught.value.field == "exposure"
        assert stage.box(sandbox.ref).data["ports"] == {}


async def test_only_some_networks_reach_the_port(stage: Stage) -> None:
    """``allow_from`` is sent with the port, so that nobody else reaches it for a moment.

    Mutation: the rules are left out of ports that create opens
    """
    options = {**stage.emulated.options, "allow_from": ("127.0.0.0/8",)}
    async with stage.launch(options=options) as env:
        await env.reset()
        port = stage.box(env.sandbox.ref).data["ports"][8000]
        assert port["ipAccessControl"]["defaultAction"] == "Deny"
        await env.sandbox.endpoint(9000)
        later = stage.box(env.sandbox.ref).data["ports"][9000]
        assert later["ipAccessControl"] == port["ipAccessControl"]


async def test_all_pages(stage: Stage) -> None:
    """A listing of several pages is read to its end.

    Mutation: only the first page is read
    """
    stage.emulated.face.page = 2
    handles = [stage.sandbox() for _ in range(5)]
    made = await asyncio.gather(*handles)
    provider = await stage.make()
    try:
        seen = {found.ref.id async for found in provider.list({})}
        assert seen == {sandbox.ref.id for sandbox in made}
    finally:
        await provider.aclose()
        await asyncio.gather(*(sandbox.stop() for sandbox in made))


async def test_a_command_runs_once(stage: Stage) -> None:
    """The answer to a command is lost behind a 503: it has run, says the error, and nobody runs it again.

    Mutation: the SDK's own repeating is left on
    """
    async with stage.sandbox() as sandbox:
        inner = sandbox._sandbox
        more: dict[str, Any] = {"env": {}, "cwd": None, "user": None, "stdin": None}
        lost = stage.faults.add("exec", when="after", status=503)
        with pytest.raises(ProviderUnavailable) as caught:
            await inner.exec_raw(["/bin/sh", "-c", "echo x >>/tmp/runs"], on_output=lambda name, data: None, **more)
        assert (caught.value.outcome, lost.hits) == ("unknown", 1)
        assert (await sandbox.exec("cat /tmp/runs")).text() == "x\n"


async def test_what_the_service_refuses(stage: Stage) -> None:
    """A folder that is not there is the command's error, a place that cannot be written the file's.

    Mutation: a refusal stays a general error of the provider
    """
    async with stage.sandbox() as sandbox:
        inner = sandbox._sandbox
        more: dict[str, Any] = {"env": {}, "user": None, "stdin": None, "on_output": lambda name, data: None}
        with pytest.raises(ExecError, match="InvalidWorkingDirectory"):
            await inner.exec_raw(["true"], cwd="/no/such/folder", **more)
        with pytest.raises(FileError, match="FileWriteFailed"):
            await inner.put("/proc/no-such/file", b"x")


def test_a_restored_one_has_no_key() -> None:
    """Labels that a memory snapshot brought along are another's: no key is read from them.

    Mutation: the key is taken from the label whatever the sandbox was made from
    """
    from azure.containerapps.sandbox import Sandbox

    raw = {"id": "x", "state": "Running", "labels": {"oe-key": "oe-1-2"}}
    own = preview._box(Sandbox._from_dict({**raw, "sourcesRef": {"diskImage": {"id": "d"}}}))
    restored = preview._box(Sandbox._from_dict({**raw, "sourcesRef": {"snapshot": {"id": "s"}}}))
    assert (info("s", own).ref.key, info("s", restored).ref.key) == ("oe-1-2", None)
