"""Runloop's blueprints: what a ref or a folder is made into, once, and disk snapshots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("runloop_api_client", reason="needs the Runloop SDK: pip install 'openenv[runloop]'")

from openenv_providers.runloop import RunloopProvider

from openenv_sandbox.errors import BuildError, CapabilityError, ImageError, ProviderError
from openenv_sandbox.provider import Prepared
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.case import HANG_S
from tests.emulators.runloop_bench import LABELS, OUR_KEY, asked, emulated, made, prepare, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine
    from tests.emulators.faces.runloop_api import RunloopFace

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def face(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunloopFace]:
    with emulated(engine, monkeypatch) as face:
        yield face


@pytest.fixture
async def provider(face: RunloopFace) -> AsyncIterator[RunloopProvider]:
    provider = await asyncio.to_thread(RunloopProvider, {"keep_openenv": True})
    yield provider
    await provider.aclose()


async def held(face: RunloopFace) -> asyncio.Event:
    """Builds wait until the event is set, on the engine's loop."""
    face.blueprints.hold = asyncio.Event()
    return face.blueprints.hold


async def building(face: RunloopFace, count: int = 1) -> None:
    """Return when so many builds were begun."""
    while face.blueprints.builds < count:  # noqa: ASYNC110 - on another loop
        await asyncio.sleep(0.01)


# --------------------------------------------------------------------------------------------------------- refs


async def test_a_ref_becomes_a_blueprint_once(provider: RunloopProvider, face: RunloopFace) -> None:
    """Found again by the next process, built anew where the spec asks for it, and the newest is taken then.

    Mutation: every launch builds
    """
    spec = asked(face)
    first = await prepare(provider, spec)
    other = await asyncio.to_thread(RunloopProvider)
    assert (await prepare(other, spec)).ref == first.ref
    await other.aclose()
    (blueprint,) = face.blueprints.all.values()
    assert blueprint.asked.dockerfile == f"FROM {spec.image}\n"
    assert blueprint.asked.launch_parameters.model_dump(exclude_none=True) == {
        "architecture": "x86_64",
        "user_parameters": {"uid": 0, "username": "root"},
    }
    assert first.labels == {"oe-install": "abc123"}
    again = await prepare(provider, spec.model_copy(update={"pull": "always"}))
    assert (again.ref == first.ref, face.blueprints.builds) == (False, 2)
    assert (await prepare(provider, spec)).ref == again.ref


async def test_another_installation_or_architecture(provider: RunloopProvider, face: RunloopFace) -> None:
    """Each removes its own blueprints only, so none is shared between installations.

    Mutation: `gc` of one takes the image away from under the other
    """
    await prepare(provider, asked(face))
    await prepare(provider, asked(face).model_copy(update={"labels": {"oe-install": "other"}}))
    arm = await asyncio.to_thread(RunloopProvider, {"architecture": "arm64"})
    await prepare(arm, asked(face))
    await arm.aclose()
    assert [b.asked.launch_parameters.architecture for b in face.blueprints.all.values()].count("arm64") == 1
    assert face.blueprints.builds == 3


async def test_a_build_of_somebody_else_is_waited_for(provider: RunloopProvider, face: RunloopFace) -> None:
    """Also when who began it gave up: the build goes on without him.

    Mutation: a build in flight is not seen, and a second one begins
    """
    hold = await asyncio.to_thread(face.engine.call, held(face))
    first = asyncio.ensure_future(prepare(provider, asked(face)))
    await asyncio.wait_for(building(face), HANG_S)
    log: list[str] = []
    second = asyncio.ensure_future(prepare(provider, asked(face), log))
    await asyncio.sleep(0.2)
    first.cancel()
    await asyncio.wait({first})
    face.engine.loop.call_soon_threadsafe(hold.set)
    prepared = await asyncio.wait_for(second, HANG_S)
    assert (face.blueprints.builds, [f"blueprint:{id}" for id in face.blueprints.all]) == (1, [prepared.ref])
    assert any("FROM" in line for line in log)


async def test_looks_at_a_build_may_fail(provider: RunloopProvider, face: RunloopFace) -> None:
    """A build of half an hour does not end with one answer that did not come.

    Mutation: the first 502 ends the wait
    """
    failed = face.engine.faults.add("look", status=502, times=2)
    assert (await prepare(provider, asked(face))).ref
    assert failed.hits == 2


@pytest.mark.parametrize("name", ["private/light", "certainly-not-there"])
async def test_a_ref_that_cannot_be_pulled(provider: RunloopProvider, face: RunloopFace, name: str) -> None:
    """An ImageError with the builder's words, and no blueprint stays: the next try builds again.

    Mutation: the failed blueprint is found by its name and taken for built
    """
    spec = asked(face, f"{face.engine.registry}/{name}:1", command=["true"])
    for count in (1, 2):
        with pytest.raises(ImageError, match=r"pull access denied[\s\S]*takes no login"):
            await prepare(provider, spec)
        assert (face.blueprints.builds, face.blueprints.all) == (count, {})


async def test_a_blueprint_that_is_gone(provider: RunloopProvider, face: RunloopFace) -> None:
    """Somebody removed it between the look and the create: that is no sandbox that is gone.

    Mutation: the vendor's 404 is taken for one of the devbox
    """
    spec = asked(face)
    prepared = await prepare(provider, spec)
    await provider.drop(prepared)
    with pytest.raises(ImageError, match=r"not built \(status 404\): was it removed\?"):
        await provider.create(prepared, spec, key=OUR_KEY)
    assert (await prepare(provider, spec)).ref != prepared.ref


async def test_a_login_is_refused(provider: RunloopProvider, face: RunloopFace) -> None:
    from openenv_sandbox import launch

    login = {"username": "me", "password": "s3kret"}
    with pytest.raises(CapabilityError):
        await launch(face.engine.image("light"), provider=RunloopProvider, registry_auth=login)
    assert face.blueprints.builds == 0


# ------------------------------------------------------------------------------------------------------ folders


def folder(path: Path, run: str = "RUN echo from the build >/built") -> Path:
    """An environment folder with a Dockerfile that copies and runs."""
    path.mkdir()
    (path / "openenv.yaml").write_text("spec_version: 1\nname: small\nport: 8000\n")
    (path / "marker.txt").write_text("copied\n")
    (path / "left_out.txt").write_text("never sent\n")
    (path / ".dockerignore").write_text("left_out.txt\n")
    text = f'FROM python:3.11-slim\nENV MARK=yes\nWORKDIR /work\nADD . /work\n{run}\nCMD ["sleep", "1000"]\n'
    (path / "Dockerfile").write_text(text)
    return path


async def test_a_folder_is_built_by_the_vendor(provider: RunloopProvider, face: RunloopFace, tmp_path: Path) -> None:
    """The context goes through the object store and leaves it; log streamed; the image's command is not run.

    Mutation: the context stays in the account, or .dockerignore is not heeded
    """
    spec = asked(face, str(await asyncio.to_thread(folder, tmp_path / "small")))
    log: list[str] = []
    prepared = await prepare(provider, spec, log)
    assert prepared.image.argv == ("sleep", "1000")
    assert any("ADD . /work" in line for line in log), log
    assert (len(face.blueprints.all), face.blueprints.objects) == (1, {})
    assert (await prepare(provider, spec)).ref == prepared.ref
    assert face.blueprints.builds == 1
    sandbox = await provider.create(prepared, spec, key=OUR_KEY)
    _, out, _ = await run(sandbox, "cat /built /work/marker.txt; ls /work; cat /proc/[0-9]*/cmdline")
    assert out.startswith(b"from the build\ncopied\n")
    assert b"left_out" not in out
    assert b"sleep\x001000" not in out
    await provider.delete(sandbox.ref)


async def test_a_failing_build(provider: RunloopProvider, face: RunloopFace, tmp_path: Path) -> None:
    """The log's end is in the error; blueprint and context are gone, and the next try builds again."""
    path = await asyncio.to_thread(folder, tmp_path / "bad", "RUN echo why it failed; exit 3")
    for count in (1, 2):
        with pytest.raises(BuildError, match="why it failed"):
            await prepare(provider, asked(face, str(path)))
        assert (face.blueprints.builds, face.blueprints.all, face.blueprints.objects) == (count, {}, {})


async def test_a_context_of_a_build_given_up(provider: RunloopProvider, face: RunloopFace, tmp_path: Path) -> None:
    """It stays for the build, which goes on, and has an end of its own.

    Mutation: the context is removed under a running build, or is kept for ever
    """
    spec = asked(face, str(await asyncio.to_thread(folder, tmp_path / "small")))
    hold = await asyncio.to_thread(face.engine.call, held(face))
    task = asyncio.ensure_future(prepare(provider, spec))
    await asyncio.wait_for(building(face), HANG_S)
    task.cancel()
    await asyncio.wait({task})
    (stored,) = face.blueprints.objects.values()
    assert stored.asked.ttl_ms == 6 * 3600 * 1000
    face.engine.loop.call_soon_threadsafe(hold.set)
    await asyncio.wait_for(prepare(provider, spec), HANG_S)
    assert face.blueprints.builds == 1


# -------------------------------------------------------------------------------------- templates and snapshots


async def test_a_blueprint_by_id_or_name(provider: RunloopProvider, face: RunloopFace) -> None:
    """Whoever names one boots it, and `gc --images` never takes it for ours.

    Mutation: a blueprint of the user's is dropped
    """
    built = await prepare(provider, asked(face))
    ((id, blueprint),) = face.blueprints.all.items()
    blueprint.asked = blueprint.asked.model_copy(update={"name": "mine"})
    for name in (id, built.ref, "mine"):
        found = await prepare(provider, asked(face, f"template:{name}"))
        assert (found.ref, found.owned) == (built.ref, False)
    with pytest.raises(ImageError, match="no built blueprint none-such"):
        await prepare(provider, asked(face, "template:none-such"))
    assert await provider.list_prepared() == []


async def test_a_snapshot(provider: RunloopProvider, face: RunloopFace) -> None:
    """Holds the disk and boots, by what was returned and by its id; its blueprint is kept while it exists.

    Mutation: a snapshot's id is sent as a blueprint's
    """
    sandbox = await made(provider, face)
    await run(sandbox, "echo kept >/kept")
    kept = await sandbox.snapshot()
    spec = SandboxSpec(image=f"snapshot:{kept.ref}", labels={}, command=["true"])
    spec = spec.model_copy(update={"labels": {**LABELS, "oe-key": OUR_KEY}})
    for number, prepared in enumerate((kept, await prepare(provider, spec))):
        again = await provider.create(prepared, spec, key=f"oe-aaaaaaaa-00000000001{number}")
        assert (await run(again, "cat /kept"))[1] == b"kept\n"
        await provider.delete(again.ref)
    listed = await provider.list_prepared()
    assert {item.ref for item in listed} == {f"blueprint:{sandbox.info.image}", kept.ref}
    assert {item.labels["oe-install"] for item in listed} == {"abc123"}
    (blueprint,) = [item for item in listed if item.ref != kept.ref]
    with pytest.raises(ProviderError, match="dependent snapshots"):
        await provider.drop(blueprint)
    for item in (kept, kept, blueprint, blueprint, Prepared("snp_none")):
        await provider.drop(item)
    assert (face.blueprints.all, face.commands.snapshots) == ({}, {})


async def test_a_snapshot_that_fails(provider: RunloopProvider, face: RunloopFace) -> None:
    sandbox = await made(provider, face)
    face.commands.fails = "the disk is full"
    with pytest.raises(ProviderError, match="the disk is full"):
        await asyncio.wait_for(sandbox.snapshot(), HANG_S)
    assert face.commands.snapshots == {}
