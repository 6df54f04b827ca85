"""What only islo has: names that carry labels, shares whose address is the key, profiles beside sandboxes."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("islo", reason="needs the islo SDK: pip install 'openenv[islo]'")

from openenv_providers.islo import IsloProvider

from openenv_sandbox import launch, reaper
from openenv_sandbox.client import GenericEnvClient
from openenv_sandbox.errors import CapabilityError, ConnectError, CreateTimeout, ImageError, OpenEnvError, QuotaExceeded
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing.case import HANG_S
from tests.emulators.faces import islo_case
from tests.emulators.faces.islo_case import LABELS, made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from openenv_sandbox.events import Event
    from tests.emulators.engine import Engine
    from tests.emulators.faces.islo_face import IsloFace

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]

KEY = "oe-aaaaaaaa-000000000001"
HOSTS = {"mode": "allowlist", "hosts": ["pypi.org", "example.org"]}


@pytest.fixture
def face(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsloFace]:
    with islo_case.emulated(engine) as found:
        for name, value in found.env.items():
            monkeypatch.setenv(name, value)
        yield found.face


@pytest.fixture
async def provider(face: IsloFace) -> AsyncIterator[IsloProvider]:
    provider = await asyncio.to_thread(IsloProvider)
    yield provider
    await provider.aclose()


# ------------------------------------------------------------------------------------------------------ the body


async def test_the_body_of_a_create(provider: IsloProvider, face: IsloFace) -> None:
    """Whole minutes that cover the lifetime, no idle timer, sizes as they are sold, no secret.

    Mutation: ``delete_after`` is rounded down or left out, or secrets go into ``env``
    """
    timers = {"ready": 30, "episode": 601, "margin": 60}
    asked = {"cpus": 2, "memory_mb": 100, "disk_mb": 2048}
    sandbox = await made(
        provider, face, timeouts=timers, resources=asked, env={"A": "b"}, secrets={"S": "s3kret-canary"}
    )
    (body,) = face.bodies
    assert body["lifecycle"] == {"delete_after": 720}
    assert (body["vcpus"], body["memory_mb"], body["disk_gb"]) == (2, 256, 2)
    assert (body["internet_enabled"], body["env"], body.get("gateway_profile")) == (True, {"A": "b"}, None)
    assert "s3kret-canary" not in json.dumps(body)
    assert sandbox.info.expires_at == pytest.approx(face.engine.boxes[sandbox.ref.id].ends_at, abs=2)
    assert (sandbox.info.resources.cpus, sandbox.info.resources.disk_mb) == (2.0, 2048)


async def test_more_memory_than_is_sold(provider: IsloProvider, face: IsloFace) -> None:
    with pytest.raises(CapabilityError) as caught:
        await made(provider, face, resources={"memory_mb": 8193})
    assert caught.value.field == "resources.memory_mb"
    assert face.bodies == []


# ------------------------------------------------------------------------------------------------------ the name


async def test_labels_in_the_name(provider: IsloProvider, face: IsloFace) -> None:
    """Ours and the user's can be read back from the name alone; what does not fit is refused before create.

    Mutation: the user's labels are dropped, or a name is cut to its longest
    """
    sandbox = await made(provider, face, labels={"team": "RL.1", "x": "-".join("abc")})
    (info,) = [info async for info in provider.list({"team": "RL.1"})]
    assert info.ref == sandbox.ref
    assert dict(info.labels) == {**LABELS, "oe-key": KEY, "team": "RL.1", "x": "a-b-c"}
    assert [info async for info in provider.list({"team": "RL"})] == []
    with pytest.raises(CapabilityError, match="255") as caught:
        await made(provider, face, "oe-aaaaaaaa-000000000002", labels={"a": "b" * 63, "c": "d" * 63})
    assert caught.value.field == "labels"
    assert len(face.bodies) == 1


async def test_what_is_not_ours_is_not_listed(provider: IsloProvider, face: IsloFace) -> None:
    """Names of others, and such as only look like ours.

    Mutation: every name with our prefix counts as ours
    """
    engine = face.engine
    other = {"id": "0", "image": "i", "sizes": {"vcpus": 1, "memory_mb": 256, "disk_gb": 1}, "life": None}
    for name in ("somebodys", "oe-mine", f"{KEY}-abc123", f"{KEY}-abc123-1-0189"):
        engine.call(engine.create(engine.image("light"), id=name, run_image=False, data={**other, "profile": None}))
    assert [info async for info in provider.list({})] == []
    assert list(await provider.find(KEY)) == []


async def test_pages_of_a_listing(provider: IsloProvider, face: IsloFace) -> None:
    """Mutation: only the first page is read"""
    face.page = 2
    refs = [(await made(provider, face, f"oe-aaaaaaaa-00000000000{n}")).ref for n in range(5)]
    assert [info.ref async for info in provider.list({"oe-install": "abc123"})] == refs
    assert [ref.id for ref in await provider.find("oe-aaaaaaaa-000000000004")] == [refs[4].id]


async def test_gc_without_a_journal(provider: IsloProvider, face: IsloFace) -> None:
    """An orphan whose owner and journal are gone is found by its name once it has expired, a lone profile too.

    Mutation: labels are not read from names
    """
    journal = await Journal.open()
    ours = {"oe-install": journal.install_id, "oe-run": "aaaaaaaa", "oe-expires": "1000000000"}
    sandbox = await made(provider, face, network=HOSTS)
    await provider.delete(sandbox.ref)
    from openenv_providers import _islo_gateway as gateway
    from openenv_providers._islo_values import name_of

    name = name_of(KEY, {**ours, "oe-key": KEY}, profile=True)
    await gateway.profile(provider.api, name)
    box = name_of("oe-aaaaaaaa-000000000002", ours, profile=False)
    data = {"id": "0", "image": "i", "sizes": {"vcpus": 1, "memory_mb": 256, "disk_gb": 1}, "life": None}
    engine = face.engine
    engine.call(engine.create(engine.image("light"), id=box, run_image=False, data={**data, "profile": None}))
    report = await reaper.gc(journal, providers=[provider])
    assert sorted(str(item.id) for item in report.removed) == sorted([name, box])
    assert (engine.alive(), face.control.profiles) == (0, {})


# --------------------------------------------------------------------------------------------------- the address


async def test_the_address_of_a_share_is_hidden(
    face: IsloFace, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is in no event, repr, log line or error, as long as it opens anything, and afterwards opens nothing.

    Mutation: the address is not registered as a secret, or a share outlives its endpoint
    """
    events: list[Event] = []
    options: dict[str, Any] = {"provider": IsloProvider, "exposure": "public", "on_event": events.append}
    with caplog.at_level(logging.DEBUG):
        async with launch(face.engine.image("light"), **options) as env:
            await env.reset()
            endpoint = await env.sandbox.endpoint()
            bare = await env.sandbox._way()
            secrets = list(face.shares)
            assert endpoint.url.rpartition("/")[2] in secrets
            shown = f"{env!r}{env.sandbox!r}{env.sandbox.info!r}{endpoint!r}{env.sandbox._sandbox!r}"
            client: GenericEnvClient = GenericEnvClient(base_url=bare.url)
            client._bind(bare, refresh=None, token="wrong", sandbox=None, on_close=None, death=None)
            with pytest.raises(ConnectError) as caught:
                await client.connect()
            await client.close()
            shown += f"{caught.value}{caught.value!r}"
            assert bare.url.rpartition("/")[2] not in shown
            assert "***" in shown
            await endpoint.aclose()
            assert len(face.shares) == len(secrets) - 1
    ours = [record for record in caplog.records if not record.name.startswith(("uvicorn", "asyncio"))]
    shown += repr(events) + "".join(f"{record.getMessage()}{record.exc_text}" for record in ours)
    shown += "".join(capfd.readouterr())
    assert secrets
    assert [secret for secret in secrets if secret in shown] == []
    assert face.shares == {}


async def test_a_share_lasts_as_long_as_the_sandbox(provider: IsloProvider, face: IsloFace) -> None:
    """Mutation: the vendor's default of a day, which is shorter than some lifetimes and longer than others"""
    sandbox = await made(provider, face, timeouts={"episode": 200_000.0})
    endpoint = await sandbox.endpoint(8000)
    assert endpoint.public
    assert endpoint.expires_at == pytest.approx(sandbox.info.expires_at, abs=90)
    await endpoint.aclose()
    assert face.shares == {}


# -------------------------------------------------------------------------------------------------- the profiles


async def test_an_allowlist_is_a_profile(provider: IsloProvider, face: IsloFace) -> None:
    """It denies what is not listed, is the sandbox's own, and goes with it.

    Mutation: the profile is left, or allows by default
    """
    sandbox = await made(provider, face, network=HOSTS)
    (profile,) = face.control.profiles.values()
    assert (profile["name"], profile["default_action"]) == (sandbox.ref.id, "deny")
    assert [(rule["host_pattern"], rule["action"]) for rule in profile["rules"]] == [
        ("pypi.org", "allow"),
        ("example.org", "allow"),
    ]
    assert face.bodies[0]["gateway_profile"] == sandbox.ref.id
    other = await made(provider, face, "oe-aaaaaaaa-000000000002", network="none")
    assert face.bodies[1]["internet_enabled"] is False
    await provider.delete(other.ref)
    assert face.control.profiles
    await provider.delete(sandbox.ref)
    await provider.delete(sandbox.ref)
    assert face.control.profiles == {}


@pytest.mark.parametrize("op", ["rule", "create"])
async def test_a_refusal_leaves_no_profile(provider: IsloProvider, face: IsloFace, op: str) -> None:
    """Mutation: what was made beside a sandbox that was refused stays"""
    fault = face.engine.faults.add(op, status=402)
    with pytest.raises(QuotaExceeded) as caught:
        await made(provider, face, network=HOSTS)
    assert (fault.hits, caught.value.outcome) == (1, "failed")
    assert face.control.profiles == {}


async def test_a_profile_without_its_sandbox_is_found(provider: IsloProvider, face: IsloFace) -> None:
    """The owner dies between the two, or the lifetime ends the sandbox: the key leads to the profile.

    Mutation: only sandboxes are looked for
    """
    face.engine.faults.add("create", status=0)
    with pytest.raises(OpenEnvError) as caught:
        await made(provider, face, network=HOSTS)
    assert caught.value.outcome == "unknown"
    (ref,) = await provider.find(KEY)
    assert ref.key == KEY
    sandbox = await made(provider, face, network=HOSTS)  # the same again, over what the first try left
    assert len(face.control.profiles) == 1
    face.engine.clock.advance(sandbox.info.expires_at - face.engine.clock.now() + 1)
    assert face.engine.alive() == 0
    (info,) = [info async for info in provider.list({"oe-install": "abc123"})]
    assert (info.ref.id, info.status) == (sandbox.ref.id, "stopped")
    await provider.delete(info.ref)
    assert face.control.profiles == {}
    assert list(await provider.find(KEY)) == []


async def test_a_profile_that_is_still_in_use(provider: IsloProvider, face: IsloFace) -> None:
    """Mutation: a profile that cannot be removed at once is forgotten"""
    sandbox = await made(provider, face, network=HOSTS)
    fault = face.engine.faults.add("unprofile", status=409, times=2)
    await provider.delete(sandbox.ref)
    assert fault.hits == 2
    assert face.control.profiles == {}


# ------------------------------------------------------------------------------------------------------ starting


async def test_an_image_that_cannot_be_pulled(provider: IsloProvider, face: IsloFace) -> None:
    """What ended while it was made is an error with its phase, and is removed.

    Mutation: it is waited for until the timer, or left in the account
    """
    with pytest.raises(ImageError, match=r"pulling_image.*there:0"):
        await asyncio.wait_for(made(provider, face, image=f"{face.engine.registry}/not-there:0"), HANG_S)
    assert face.failed == {}


async def test_one_that_never_starts(provider: IsloProvider, face: IsloFace) -> None:
    """Mutation: the create timer does not bound the wait, or what does not start is left"""
    face.stuck = True
    with pytest.raises(CreateTimeout) as caught:
        await made(provider, face, timeouts={"create": 0.5})
    assert caught.value.outcome == "failed"
    assert face.engine.alive() == 0
