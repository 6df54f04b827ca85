"""Prepared images go only when asked for, and only ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import reaper
from openenv_sandbox.errors import ProviderError
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import Prepared
from openenv_sandbox.reaper import Wish
from openenv_sandbox.testing.fake import FakeCloud, FakeProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def provider(cloud: FakeCloud) -> FakeProvider:
    return cloud.provider()()


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = await Journal.open(tmp_path / "ours")
    yield journal
    await journal.aclose()


async def test_images_are_dropped_when_asked_for(cloud: FakeCloud, provider: FakeProvider, journal: Journal) -> None:
    await provider.call("prepare", key="k", ref="built:1")
    await reaper.gc(journal, providers=[provider])
    assert cloud.prepared
    report = await reaper.gc(journal, providers=[provider], wish=Wish(images=True))
    assert report.images == ["fake built:1"]
    assert not cloud.prepared


async def test_images_of_others_and_young_ones_stay(provider: FakeProvider, journal: Journal) -> None:
    """Of what a shared backend lists, only this install's own goes, and only when it is old enough.

    Mutation: _Reaper._images drops whatever is owned
    """
    label, now = "oe-install", time.time()
    listing = [("mine:old", label, journal.install_id, 1.0), ("mine:new", label, journal.install_id, now)]
    listing += [("theirs:old", label, "0" * 16, 1.0), ("nobodys:old", "openenv.built", "x", 1.0)]

    async def listed() -> list[Prepared]:
        return [Prepared(ref, owned=True, labels={name: of}, created_at=at) for ref, name, of, at in listing]

    provider.list_prepared = listed  # type: ignore[method-assign]
    report = await reaper.gc(journal, providers=[provider], wish=Wish(images=True, older_than=3600, dry_run=True))
    assert report.images == ["fake mine:old"]


async def test_an_image_in_use_stays_and_the_others_go(provider: FakeProvider, journal: Journal) -> None:
    """One refusal does not keep the rest.

    Mutation: the loop over images ends at the first error
    """

    async def listed() -> list[Prepared]:
        return [Prepared(ref, owned=True) for ref in ("used:1", "free:1")]

    async def drop(prepared: Prepared) -> None:
        if prepared.ref == "used:1":
            raise ProviderError("a container uses it")

    provider.list_prepared = listed  # type: ignore[method-assign]
    provider.drop = drop  # type: ignore[method-assign]
    report = await reaper.gc(journal, providers=[provider], wish=Wish(images=True))
    assert report.images == ["fake free:1"]
    assert [(item.id, item.reason) for item in report.kept] == [("used:1", "the image is in use: a container uses it")]
