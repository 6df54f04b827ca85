from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.errors import EndpointError, ProviderUnavailable, RateLimited, SandboxGone
from openenv_sandbox.provider import Image, Sandbox
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.fake import FakeClock, FakeCloud, FakeProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud(clock=FakeClock()) as cloud:
        yield cloud


async def _make(provider: FakeProvider, key: str = "oe-1", **spec: object) -> Sandbox:
    full = SandboxSpec.model_validate({"image": "fake-env:1", **spec})
    prepared = await provider.prepare(full, Image("ref", "fake-env:1"), on_log=lambda _: None)
    return await provider.create(prepared, full, key=key)


async def test_a_sandbox_serves_execs_and_ends(cloud: FakeCloud) -> None:
    provider = cloud.provider()()
    sandbox = await _make(provider, labels={"mine": "x"}, env={"GREETING": "hello there"})
    await sandbox.first_output()
    out: list[tuple[str, bytes]] = []
    result = await sandbox.exec_raw(
        ["sh", "-c", 'printf "%s/%s" "$GREETING" "$X"; cat >&2; exit 7'],
        env={"X": "1"},
        cwd=None,
        user=None,
        stdin=b"in",
        on_output=lambda name, data: out.append((name, data)),
    )
    assert result.exit_code == 7
    assert sorted(out) == [("stderr", b"in"), ("stdout", b"hello there/1")]
    assert [ref.id for ref in await provider.find("oe-1")] == [sandbox.ref.id]
    assert [info.labels async for info in provider.list({"mine": "x"})] == [{"mine": "x"}]
    assert b"fake-env" in await sandbox.logs()
    root = cloud.boxes[sandbox.ref.id].root
    await sandbox.delete()
    await sandbox.delete()
    assert not cloud.live()
    assert not root.exists()
    with pytest.raises(SandboxGone):
        await sandbox.endpoint(8000)


async def test_a_command_is_a_real_process(cloud: FakeCloud) -> None:
    sandbox = await _make(cloud.provider()(), command=["sh", "-c", "echo up; exit 3"])
    ended = await sandbox.wait_exit()
    assert (ended.code, ended.tail) == (3, b"up\n")


async def test_deleting_kills_what_left_the_session(cloud: FakeCloud) -> None:
    sandbox = await _make(cloud.provider()(), command=["sh", "-c", "setsid sleep 1000 & echo $!; exec sleep 1000"])
    await sandbox.first_output()
    await sandbox.delete()
    assert (await sandbox.wait_exit()).code in (None, 137)


async def test_faults_count_their_hits(cloud: FakeCloud) -> None:
    provider = cloud.provider()()
    limited = cloud.faults.add("create", status=429, retry_after=1.5)
    lost = cloud.faults.add("create", status=0, when="after", late=5)
    with pytest.raises(RateLimited) as caught:
        await _make(provider)
    assert caught.value.retry_after == 1.5
    assert (limited.hits, lost.hits) == (1, 0)
    assert not cloud.live()
    with pytest.raises(ProviderUnavailable) as unknown:
        await _make(provider)
    assert unknown.value.outcome == "unknown"
    assert len(cloud.live()) == 1
    assert await provider.find("oe-1") == []
    await cloud.clock.advance(5)
    assert len(await provider.find("oe-1")) == 1
    assert not cloud.faults.unused()


async def test_the_clock_ends_a_sandbox(cloud: FakeCloud) -> None:
    sandbox = await _make(cloud.provider()(), timeouts={"ready": 1, "episode": 1, "margin": 0, "lifetime": 60})
    await cloud.clock.advance(50)
    await sandbox.extend(60)
    await cloud.clock.advance(50)
    assert cloud.live()
    await cloud.clock.advance(20)
    assert not cloud.live()


async def test_half_a_listing_and_a_late_port(cloud: FakeCloud) -> None:
    provider = cloud.provider()()
    for n in range(4):
        sandbox = await _make(provider, key=f"oe-{n}")
    cloud.faults.add("list", half=2)
    listing = provider.list({})
    assert {(await anext(listing)).ref.key, (await anext(listing)).ref.key} == {"oe-0", "oe-1"}
    with pytest.raises(ProviderUnavailable):
        await anext(listing)
    cloud.faults.add("endpoint", status=425)
    with pytest.raises(EndpointError) as caught:
        await sandbox.endpoint(8000)
    assert caught.value.retryable
