"""What dead owners left goes; what may still appear, lives, or is somebody else's stays."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import reaper, registry
from openenv_sandbox.errors import ProviderUnavailable
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import Prepared, SandboxRef
from openenv_sandbox.reaper import Wish
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.fake import FakeCloud, FakeProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def provider(cloud: FakeCloud) -> FakeProvider:
    return cloud.provider(start="exec", lifetime="none")()


class World:
    """One state folder; owners come and go by opening and closing its journal."""

    def __init__(self, folder: Path, provider: FakeProvider) -> None:
        self.folder, self.provider = folder, provider

    async def owner(self) -> Journal:
        return await Journal.open(self.folder)

    async def launch(self, journal: Journal, *, expires: float = 3600, lost: bool = False, settle: float = 60) -> str:
        key, now = journal.new_key(), time.time()
        await journal.intent(key, self.provider.name, self.provider.scope(), now + settle, expires_at=now + expires)
        labels = {
            reaper.INSTALL: journal.install_id,
            reaper.RUN: journal.run_id,
            reaper.KEY: key,
            reaper.EXPIRES: f"{now + expires:.0f}",
        }
        spec = SandboxSpec(image="x", labels=labels)
        sandbox = await self.provider.create(Prepared("x"), spec, key=key)
        if not lost:
            await journal.created(sandbox.ref)
        return key


@pytest.fixture
def world(tmp_path: Path, provider: FakeProvider) -> World:
    return World(tmp_path / "ours", provider)


@pytest.fixture
async def dead(world: World) -> AsyncIterator[Callable[..., Any]]:
    """Launches ``count`` sandboxes in a run that then ends, and returns a new journal."""
    opened: list[Journal] = []

    async def run(count: int = 5, **kw: Any) -> tuple[Journal, list[str]]:
        owner = await world.owner()
        keys = [await world.launch(owner, **kw) for _ in range(count)]
        await owner.aclose()
        opened.append(await world.owner())
        return opened[-1], keys

    yield run
    for journal in opened:
        await journal.aclose()


def keys_of(cloud: FakeCloud) -> set[str]:
    return {box.key for box in cloud.live()}


async def test_the_next_launch_removes_what_a_dead_owner_left_and_nothing_else(
    world: World, dead: Any, cloud: FakeCloud, tmp_path: Path, provider: FakeProvider
) -> None:
    """Five of a dead run go; those of a living owner and of another state folder stay.

    Scenario: A04
    Mutation: _is_due ignores row.alive, or rows are not selected by scope
    """
    other = World(tmp_path / "theirs", provider)
    theirs = await other.owner()
    foreign = [await other.launch(theirs) for _ in range(5)]
    await theirs.aclose()
    journal, keys = await dead()
    living = await world.launch(journal)
    report = await reaper.reap(provider, journal)
    assert {item.key for item in report.removed} == set(keys)
    assert keys_of(cloud) == {living, *foreign}
    assert [row.key for row in await journal.rows()] == [living]
    assert report.clean


async def test_a_create_that_was_lost_keeps_its_row_until_nothing_can_appear(
    dead: Any, cloud: FakeCloud, world: World
) -> None:
    """Nothing found at once is not nothing: the row stays until the create timer and the settle time are over.

    Scenario: A02
    Mutation: _row closes an intent row as soon as find() is empty
    """
    late = cloud.faults.add("create", late=3600.0)
    journal, (key,) = await dead(1, lost=True)
    assert late.hits == 1
    report = await reaper.reap(world.provider, journal)
    assert (report.removed, [item.key for item in report.kept]) == ([], [key])
    assert len(await journal.rows()) == 1
    for box in cloud.live():
        box.visible_at = 0.0  # it appears
    report = await reaper.reap(world.provider, journal)
    assert [item.key for item in report.removed] == [key]
    assert not cloud.live()
    assert len(await journal.rows()) == 1
    report = await reaper.reap(world.provider, journal, clock=lambda: time.time() + 61)
    assert report.removed == []
    assert await journal.rows() == []


async def test_every_sandbox_of_one_key_is_deleted(dead: Any, cloud: FakeCloud, world: World) -> None:
    cloud.dedupes = False
    journal, (key,) = await dead(1)
    (box,) = cloud.live()
    await world.provider.create(Prepared("x"), SandboxSpec(image="x", labels=box.labels), key=key)
    report = await reaper.reap(world.provider, journal)
    assert len(report.removed) == 2
    assert not cloud.live()


async def test_what_a_look_up_returns_is_checked_again_before_it_is_deleted(
    dead: Any, cloud: FakeCloud, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = await dead(1, lost=True)
    living = await world.launch(journal)
    (theirs,) = [box for box in cloud.live() if box.key == living]

    async def everything(key: str) -> list[SandboxRef]:
        scope = world.provider.scope()
        return [SandboxRef("fake", scope, theirs.id, living), SandboxRef("fake", "elsewhere", theirs.id, key)]

    monkeypatch.setattr(world.provider, "find", everything)
    await reaper.reap(world.provider, journal)
    assert living in keys_of(cloud)


async def test_a_pending_delete_is_completed_by_the_next_process(dead: Any, cloud: FakeCloud, world: World) -> None:
    """A delete that its process did not live to see is done by the next one.

    Scenario: A08
    Mutation: _is_due leaves out pending_delete
    """
    owner = await world.owner()
    key = await world.launch(owner)
    await owner.pending_delete(key)
    report = await reaper.reap(world.provider, owner)
    assert report.removed == []  # its owner lives and is at it
    await owner.aclose()
    journal, _ = await dead(0)
    report = await reaper.reap(world.provider, journal)
    assert [item.key for item in report.removed] == [key]
    assert not cloud.live()


async def test_a_pending_delete_that_its_living_owner_gave_up_is_completed(world: World, cloud: FakeCloud) -> None:
    owner = await world.owner()
    key = await world.launch(owner)
    await owner.pending_delete(key)
    await reaper.reap(world.provider, owner, clock=lambda: time.time() + 61)
    assert not cloud.live()
    await owner.aclose()


async def test_what_was_kept_on_purpose_stays_until_it_expires_and_is_named(
    world: World, dead: Any, cloud: FakeCloud
) -> None:
    """A detached sandbox outlives its process, is named with its run, and goes when it expires or by its run.

    Scenario: A16
    Mutation: _is_due treats a detached row like a created one
    """
    owner = await world.owner()
    key = await world.launch(owner, expires=600)
    await owner.detached(key)
    run = owner.run_id
    await owner.aclose()
    journal, _ = await dead(0)
    report = await reaper.gc(journal, providers=[world.provider])
    assert (report.removed, [(item.key, item.run) for item in report.kept]) == ([], [(key, run)])
    report = await reaper.gc(journal, providers=[world.provider], wish=Wish(run=run, dry_run=True))
    assert [item.key for item in report.removed] == [key]
    assert keys_of(cloud) == {key}
    await reaper.reap(world.provider, journal, clock=lambda: time.time() + 601)
    assert not cloud.live()


async def test_a_failing_delete_keeps_its_row_and_the_others_go(dead: Any, cloud: FakeCloud, world: World) -> None:
    refused = cloud.faults.add("delete", status=500)
    journal, keys = await dead(3)
    report = await reaper.reap(world.provider, journal)
    assert (refused.hits, len(report.removed), len(report.failed), report.clean) == (1, 2, 1, False)
    assert [row.key for row in await journal.rows()] == [report.failed[0].key]
    report = await reaper.reap(world.provider, journal)
    assert len(report.removed) == 1
    assert len(keys) == 3
    assert not cloud.live()


async def test_a_hanging_delete_is_bounded(dead: Any, cloud: FakeCloud, world: World) -> None:
    cloud.faults.add("delete", hang=True)
    journal, _ = await dead(2)
    report = await reaper.reap(world.provider, journal, budget_s=0.5)
    assert (len(report.removed), [item.reason for item in report.kept]) == (1, ["not reached within 0.5 s"])
    assert len(await journal.rows()) == 1


async def test_two_who_reap_at_once_do_not_do_it_twice(dead: Any, cloud: FakeCloud, world: World) -> None:
    journal, keys = await dead(3)
    await journal.claim(keys[:2], 60)
    report = await reaper.reap(world.provider, journal)
    assert [item.key for item in report.removed] == keys[2:]
    assert {item.reason for item in report.kept} == {"another process is at it"}
    report = await reaper.gc(journal, providers=[world.provider])
    assert len(report.removed) == 2


async def test_a_lost_journal_is_made_up_for_by_labels_once_they_expire(
    dead: Any, cloud: FakeCloud, world: World, tmp_path: Path, provider: FakeProvider
) -> None:
    """Where nothing ends by itself: what carries our install id and has expired goes, another install's does not."""
    journal, keys = await dead(2)
    other = World(tmp_path / "theirs", provider)
    theirs = await other.owner()
    foreign = await other.launch(theirs, expires=-10)
    await theirs.aclose()
    living = await world.launch(journal, expires=-10)  # its owner will extend it
    for key in (*keys, living):
        await journal.close(key)
    report = await reaper.gc(journal, providers=[provider])
    assert (report.removed, {item.key for item in report.kept}) == ([], set(keys))
    report = await reaper.reap(provider, journal, clock=lambda: time.time() + 3700)
    assert {item.key for item in report.removed} == set(keys)
    assert keys_of(cloud) == {foreign, living}
    report = await reaper.gc(journal, providers=[provider], wish=Wish(expired_any=True))
    assert [item.reason for item in report.removed] == ["expired, of another install"]
    assert keys_of(cloud) == {living}


async def test_labels_are_compared_again_before_a_delete(
    dead: Any, cloud: FakeCloud, world: World, tmp_path: Path, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend whose filter lets everything through costs another install nothing."""
    other = World(tmp_path / "theirs", provider)
    theirs = await other.owner()
    foreign = await other.launch(theirs, expires=-10)
    await theirs.aclose()
    journal, _ = await dead(0)
    real = provider.list
    monkeypatch.setattr(provider, "list", lambda labels: real({}))
    report = await reaper.gc(journal, providers=[provider])
    assert (report.removed, keys_of(cloud)) == ([], {foreign})


async def test_a_run_can_be_removed_by_name_and_no_other_goes(dead: Any, cloud: FakeCloud, world: World) -> None:
    """Thirty sandboxes of a dead run go by its id, journal or not; those of the next dead run stay.

    Scenario: A01
    Mutation: _is_due and _labelled_due ignore wish.run
    """
    first = await world.owner()
    mine = [await world.launch(first) for _ in range(30)]
    for key in mine[:3]:
        await first.close(key)  # these are known by their labels only
    await first.aclose()
    journal, others = await dead(2)
    report = await reaper.gc(journal, providers=[world.provider], wish=Wish(run=first.run_id))
    assert {item.key for item in report.removed} == set(mine)
    assert keys_of(cloud) == set(others)
    live = await world.launch(journal)
    report = await reaper.gc(journal, providers=[world.provider], wish=Wish(run=journal.run_id))
    assert (report.removed, [item.reason for item in report.kept]) == ([], ["its owner is alive"])
    assert live in keys_of(cloud)


async def test_a_dry_run_touches_nothing(dead: Any, cloud: FakeCloud, world: World) -> None:
    journal, keys = await dead(2)
    before = await journal.rows()
    report = await reaper.gc(journal, providers=[world.provider], wish=Wish(dry_run=True, images=True))
    assert {item.key for item in report.removed} == set(keys)
    assert (keys_of(cloud), await journal.rows(), cloud.count("delete")) == (set(keys), before, 0)
    report = await reaper.gc(journal, providers=[world.provider], wish=Wish(older_than=3600))
    assert report.removed == []


async def test_another_scope_is_out_of_sight_and_said_so(dead: Any, cloud: FakeCloud, world: World) -> None:
    """Not found under another login is not gone: the rows stay, and the report says which login reaches them."""
    journal, _ = await dead(2)
    other = cloud.provider(start="exec", lifetime="none")({"account": "other"})
    report = await reaper.gc(journal, providers=[other])
    (unseen,) = report.unseen
    assert (unseen.scope, unseen.count, report.removed) == (world.provider.scope(), 2, [])
    assert other.scope() in unseen.reason
    assert not report.clean
    assert len(await journal.rows()) == 2


async def test_gc_goes_where_the_journal_points_and_names_what_it_cannot_reach(
    dead: Any, cloud: FakeCloud, world: World
) -> None:
    journal, keys = await dead(2)
    key = journal.new_key()
    await journal.intent(key, "nowhere", "s", 0.0)
    with registry.registered(type(world.provider)):
        report = await reaper.gc(journal)
    assert {item.key for item in report.removed} == set(keys)
    assert [(u.provider, u.scope, u.count) for u in report.unseen] == [("nowhere", "s", 1)]
    assert report.looked_at == [f"fake {world.provider.scope()}"]
    assert report.to_dict()["unseen"][0]["hint"]


async def test_a_listing_that_breaks_does_not_save_the_rows(dead: Any, cloud: FakeCloud, world: World) -> None:
    cloud.faults.add("list", status=500, times=None)
    journal, _ = await dead(2)
    report = await reaper.reap(world.provider, journal)
    assert len(report.removed) == 2
    assert len(report.unseen) == 1


async def test_reaping_never_raises(dead: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = await dead(1)
    monkeypatch.setattr(world.provider, "scope", lambda: (_ for _ in ()).throw(ProviderUnavailable("no daemon")))
    report = await reaper.reap(world.provider, journal)
    assert [unseen.reason for unseen in report.unseen] == ["no daemon"]


async def test_a_backend_that_finds_nothing_keeps_the_row_until_the_sandbox_is_over(
    dead: Any, cloud: FakeCloud, world: World
) -> None:
    journal, _ = await dead(1, lost=True, settle=-1)
    blind = cloud.provider(start="exec", findable="none", labels="journal", lifetime="server-fixed")()
    report = await reaper.reap(blind, journal)
    (kept,) = report.kept
    assert re.fullmatch(r"cannot be looked up; ends by itself at [-0-9]{10} [0-9:]{8} UTC or before", kept.reason)
    await reaper.reap(blind, journal, clock=lambda: time.time() + 3601)
    assert (await journal.rows(), cloud.count("find"), cloud.count("list")) == ([], 0, 0)


async def test_reattaching_state_reaches_the_delete(world: World, dead: Any, cloud: FakeCloud) -> None:
    owner = await world.owner()
    key = await world.launch(owner)
    (row,) = await owner.rows()
    assert row.ref is not None
    await owner.created(replace(row.ref, state={"token": "t"}))
    await owner.aclose()
    journal, _ = await dead(0)
    seen: list[SandboxRef] = []
    real = world.provider.delete

    async def delete(ref: SandboxRef) -> None:
        seen.append(ref)
        await real(ref)

    world.provider.delete = delete  # type: ignore[method-assign]
    await reaper.reap(world.provider, journal)
    assert [(ref.key, dict(ref.state)) for ref in seen] == [(key, {"token": "t"})]
    shutil.rmtree(world.folder / "refs")
