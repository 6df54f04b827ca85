"""What builds and snapshots leave on a real daemon, and who removes it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.docker import DockerProvider

from openenv_sandbox import reaper
from openenv_sandbox.image import parse
from openenv_sandbox.journal import Journal
from openenv_sandbox.reaper import Wish
from openenv_sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import docker

    from openenv_sandbox.provider import Prepared
    from tests.docker.docks import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

NAME = f"gc-env-{os.getpid()}"


@pytest.fixture
async def journal() -> AsyncIterator[Journal]:
    found = await Journal.open()
    yield found
    await found.aclose()


async def built(tmp_path: Path, install: str, name: str) -> Prepared:
    """A folder as a launch of that installation builds it."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "openenv.yaml").write_text(f"name: {name}\n")
    (folder / "Dockerfile").write_text(f'FROM scratch\nCOPY openenv.yaml /{name}\nCMD ["x"]\n')
    provider = await asyncio.to_thread(DockerProvider, {"keep_openenv": True})
    spec = SandboxSpec(image=str(folder)).model_copy(update={"labels": {"oe-install": install}})
    try:
        return await provider.prepare(spec, await asyncio.to_thread(parse, folder), on_log=lambda line: None)
    finally:
        await provider.aclose()


async def test_images_of_builds_and_snapshots(
    dock: Docker, journal: Journal, tmp_path: Path, engine: docker.DockerClient
) -> None:
    """By label and age, a dry run first; what others made, what is in use and what the user named stays.

    Mutation: `_docker_images.ours` takes every name of an image for ours
    """
    try:
        await _images(dock, journal, tmp_path, engine)
    finally:
        for image in await asyncio.to_thread(engine.images.list):
            for tag in image.tags:
                if NAME in tag:
                    await asyncio.to_thread(engine.images.remove, tag, force=True)


async def _images(dock: Docker, journal: Journal, tmp_path: Path, engine: docker.DockerClient) -> None:
    mine = await built(tmp_path, journal.install_id, f"{NAME}-mine")
    used = await built(tmp_path, journal.install_id, f"{NAME}-used")
    theirs = await built(tmp_path, "somebody-else", f"{NAME}-theirs")
    engine.images.get(mine.ref).tag("openenv-test/by-user", NAME)
    holder = await asyncio.to_thread(engine.containers.create, used.ref, labels={"oe-run": dock.run})
    box = await dock.create()
    box.info = replace(box.info, labels={**box.info.labels, "oe-install": journal.install_id})
    snapshot = await box.snapshot()
    await box.delete()
    ours = {f"docker {mine.ref}", f"docker {snapshot.ref}"}

    async def gc(**wish: Any) -> reaper.ReapReport:
        return await reaper.gc(journal, providers=["docker"], wish=Wish(images=True, **wish))

    assert (await gc(older_than=3600)).images == []
    dry = await gc(dry_run=True)
    assert set(dry.images) == {*ours, f"docker {used.ref}"}
    assert engine.images.get(mine.ref).id == mine.digest
    report = await gc()
    assert set(report.images) == ours
    assert [item.id for item in report.kept] == [used.ref]
    assert "in use" in report.kept[0].reason
    left = {tag for image in engine.images.list() for tag in image.tags}
    assert {mine.ref, snapshot.ref}.isdisjoint(left)
    assert {theirs.ref, used.ref, f"openenv-test/by-user:{NAME}"} <= left
    await asyncio.to_thread(holder.remove)
    assert (await gc()).images == [f"docker {used.ref}"]
