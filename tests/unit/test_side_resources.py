"""What create makes beside a sandbox (a policy, a secret) is found and removed although no sandbox came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import launch, reaper
from openenv_sandbox.errors import ProviderError, SandboxGone
from openenv_sandbox.journal import Journal
from openenv_sandbox.provider import SandboxInfo, SandboxRef
from openenv_sandbox.testing.fake import FakeCloud

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


def policies(cloud: FakeCloud, side: dict[str, Mapping[str, str]]) -> Any:
    """A provider that makes a policy of the key's name first, and then never hears of its sandbox."""

    class Beside(cloud.provider(dedupes_key=False, start="exec", lifetime="none")):  # type: ignore[misc]
        async def create(self, prepared: Any, spec: Any, *, key: str) -> Any:
            side[key] = spec.labels
            raise ProviderError("the answer was lost", provider=self.name, outcome="unknown", retryable=True)

        async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
            for key, its in side.items():
                if labels.items() <= its.items():
                    yield SandboxInfo(SandboxRef(self.name, self.scope(), f"policy-{key}", key), "failed", labels=its)

        async def find(self, key: str) -> Any:
            return [info.ref async for info in self.list({"oe-key": key})]

        async def attach(self, ref: SandboxRef) -> Any:
            raise SandboxGone("there is no sandbox", ref=ref)

        async def delete(self, ref: SandboxRef) -> None:
            side.pop(ref.key or "", None)

    return Beside


async def test_a_failed_launch_removes_them(cloud: FakeCloud) -> None:
    """Mutation: undoing deletes only what can be attached to"""
    side: dict[str, Mapping[str, str]] = {}
    with pytest.raises(ProviderError, match="lost"):
        await launch("fake-env:1", provider=policies(cloud, side))
    assert side == {}
    assert await (await Journal.open()).rows() == []


async def test_gc_removes_them_without_a_row(cloud: FakeCloud, tmp_path: Path) -> None:
    """The process was killed in create, and its journal is lost: the labels lead to what is left.

    Mutation: gc skips what is not running
    """
    journal = await Journal.open(tmp_path / "journal")
    key = "oe-0badcafe-0123456789ab"
    labels = {reaper.INSTALL: journal.install_id, reaper.RUN: "0badcafe", reaper.KEY: key, reaper.EXPIRES: "1000"}
    side: dict[str, Mapping[str, str]] = {key: labels}
    report = await reaper.gc(journal, providers=[policies(cloud, side)()])
    assert [item.id for item in report.removed] == [f"policy-{key}"]
    assert side == {}
