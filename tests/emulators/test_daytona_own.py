"""What only Daytona has: snapshots made by its builder, its names, sizes, timers, networks and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("daytona_api_client_async", reason="needs the daytona SDK: pip install 'openenv[daytona]'")

from openenv_providers.daytona import DaytonaProvider

from openenv_sandbox import image as images
from openenv_sandbox.errors import (
    BuildError,
    CapabilityError,
    ExecError,
    ImageError,
    ProviderError,
)
from openenv_sandbox.spec import SandboxSpec
from openenv_sandbox.testing.case import HANG_S
from tests.emulators.daytona_bench import LABELS, emulated, made, prepare
from tests.emulators.faces.daytona_api import ORGANIZATION, DaytonaFace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def face(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaytonaFace]:
    with emulated(engine, monkeypatch) as face:
        yield face


@pytest.fixture
async def provider(face: DaytonaFace) -> AsyncIterator[DaytonaProvider]:
    provider = await asyncio.to_thread(DaytonaProvider)
    yield provider
    await provider.aclose()


# ------------------------------------------------------------------------------------------------------ the body


async def test_the_body_of_a_create(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """The TTL is the lifetime, no idle timer can end an episode, what stops is deleted, and the key is the name.

    Mutation: autoStopInterval is left at the vendor's 15 minutes, or autoDeleteInterval out
    """
    timers = {"ready": 30, "episode": 600, "margin": 60}
    sandbox = await made(provider, face, timeouts=timers, env={"A": "b"}, secrets={"S": "s3kret-canary"})
    (body,) = face.bodies
    assert body["name"] == body["labels"]["oe-key"] == "oe-aaaaaaaa-000000000001"
    assert (body["ttlMinutes"], body["autoStopInterval"], body["autoDeleteInterval"]) == (12, 0, 0)
    assert (body["public"], body["networkBlockAll"], body["env"]) == (False, False, {"A": "b"})
    assert "s3kret-canary" not in json.dumps(body)
    assert sandbox.info.expires_at is not None


@pytest.mark.parametrize(
    ("network", "blocked", "cidrs", "hosts"),
    [
        ("none", True, None, None),
        ({"mode": "allowlist", "cidrs": ["10.0.0.0/8", "192.0.2.1/32"]}, False, "10.0.0.0/8,192.0.2.1/32", None),
        ({"mode": "allowlist", "hosts": ["pypi.org", "example.org"]}, False, None, "pypi.org,example.org"),
    ],
)
async def test_networks(
    provider: DaytonaProvider, face: DaytonaFace, network: Any, blocked: bool, cidrs: str | None, hosts: str | None
) -> None:
    sandbox = await made(provider, face, network=network)
    assert face.engine.boxes[sandbox.ref.id].data["network"] == (blocked, cidrs, hosts)


async def test_both_lists_are_refused(provider: DaytonaProvider, face: DaytonaFace) -> None:
    mixed = {"mode": "allowlist", "cidrs": ["10.0.0.0/8"], "hosts": ["pypi.org"]}
    with pytest.raises(CapabilityError, match="both together"):
        await made(provider, face, network=mixed)
    assert face.bodies == []


async def test_sizes_are_rounded_up_and_baked(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Sizes go into the snapshot, in whole cores and GiB; another size is another snapshot.

    Mutation: memory is rounded down, or one snapshot serves every size
    """
    sizes = {"cpus": 1.5, "memory_mb": 2049, "disk_mb": 10_000, "gpus": "h100:2"}
    sandbox = await made(provider, face, resources=sizes)
    found = sandbox.info.resources
    assert (found.cpus, found.memory_mb, found.disk_mb, found.gpus) == (2.0, 3072, 10_240, "H100:2")
    other = await made(provider, face, key="oe-aaaaaaaa-000000000002")
    assert (other.info.resources.cpus, face.snapshots.builds) == (1.0, 2)
    assert other.info.image != sandbox.info.image


async def test_a_snapshot_has_its_sizes(provider: DaytonaProvider, face: DaytonaFace) -> None:
    spec = SandboxSpec(image="template:some-snapshot", resources={"cpus": 2})
    with pytest.raises(CapabilityError, match="sizes"):
        provider.fit(spec, images.parse(spec.image))


# ------------------------------------------------------------------------------------------------------- images


async def test_a_ref_becomes_a_snapshot_once(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Pulled once for many, found again by the next process, made anew where the spec asks for it.

    Mutation: every create pulls again
    """
    spec = SandboxSpec(image=face.engine.image("light"))
    first = await prepare(provider, spec)
    other = await asyncio.to_thread(DaytonaProvider)
    assert (await prepare(other, spec)).ref == first.ref
    await other.aclose()
    assert face.snapshots.builds == 1
    assert face.snapshots.records[first.ref].entrypoint == ["sleep", "infinity"]
    await prepare(provider, spec.model_copy(update={"pull": "always"}))
    assert face.snapshots.builds == 2


async def test_two_make_one_snapshot_at_once(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Two processes that both find nothing: the second is told 409 and waits for the first one's."""
    spec = SandboxSpec(image=face.engine.image("light"))
    hold = face.engine.faults.add("prepare", when="before", delay=0.2, times=None)
    first, second = await asyncio.gather(prepare(provider, spec), prepare(provider, spec))
    assert (first.ref, face.snapshots.builds) == (second.ref, 1)
    assert hold.hits == 2


async def test_an_unused_snapshot_is_woken(provider: DaytonaProvider, face: DaytonaFace) -> None:
    spec = SandboxSpec(image=face.engine.image("light"))
    first = await prepare(provider, spec)
    face.snapshots.records[first.ref].state = "inactive"
    await prepare(provider, spec)
    assert (face.snapshots.records[first.ref].state, face.snapshots.builds) == ("active", 1)


async def test_a_private_registry(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Refused with what to do, and taken once the organisation has the registry."""
    spec = SandboxSpec(image=face.engine.image("private/light"), command=["true"])
    with pytest.raises(ImageError, match=r"access denied[\s\S]*registered with the organisation"):
        await prepare(provider, spec)
    face.snapshots.registries.add(face.engine.registry)
    assert (await prepare(provider, spec)).ref


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


async def test_a_folder_is_built_by_the_vendor(provider: DaytonaProvider, face: DaytonaFace, tmp_path: Path) -> None:
    """Context in the object store, built once, log streamed, the image's own command not run; ours are listed.

    Mutation: the context is sent without what ADD needs, or the image's CMD runs beside core's server
    """
    provider = await asyncio.to_thread(DaytonaProvider, {"keep_openenv": True})
    spec = SandboxSpec(image=str(await asyncio.to_thread(folder, tmp_path / "small")), labels={})
    spec = spec.model_copy(update={"labels": dict(LABELS)})
    log: list[str] = []
    prepared = await prepare(provider, spec, log)
    assert prepared.labels == {"oe-install": "abc123"}
    assert prepared.image.argv == ("sleep", "1000")
    assert any("echo from the build" in line for line in log), log
    (stored,) = face.snapshots.objects
    assert stored.startswith(f"{ORGANIZATION}/")
    assert (await prepare(provider, spec)).ref == prepared.ref
    assert face.snapshots.builds == 1
    sandbox = await provider.create(prepared, spec, key="oe-aaaaaaaa-000000000003")
    out = bytearray()
    await sandbox.exec_raw(
        ["/bin/sh", "-c", "cat /built /work/marker.txt; ls /work; cat /proc/1/cmdline /proc/[0-9]*/cmdline"],
        env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: out.extend(data),
    )  # fmt: skip
    assert b"from the build\ncopied\n" in out
    assert b"left_out" not in out
    assert b"sleep\x001000" not in out
    assert b"sleep\x00infinity" in out
    assert [found.ref for found in await provider.list_prepared()] == [prepared.ref]
    await provider.delete(sandbox.ref)
    await provider.drop(prepared)
    await provider.drop(prepared)
    assert face.snapshots.records == {}
    await provider.aclose()


async def test_a_failing_build(provider: DaytonaProvider, face: DaytonaFace, tmp_path: Path) -> None:
    """The log's end is in the error, and the next try builds again."""
    provider = await asyncio.to_thread(DaytonaProvider, {"keep_openenv": True})
    path = await asyncio.to_thread(folder, tmp_path / "bad", "RUN echo why it failed; exit 3")
    spec = SandboxSpec(image=str(path))
    for count in (1, 2):
        with pytest.raises(BuildError, match="why it failed"):
            await prepare(provider, spec)
        assert face.snapshots.builds == count
    await provider.aclose()


# ---------------------------------------------------------------------------------------------------- sandboxes


async def test_pages_of_a_listing(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Every page is asked for; rows that the vendor should not have sent are left out.

    Mutation: the cursor is not followed
    """
    face.page = 2
    for number in range(5):
        await made(provider, face, key=f"oe-aaaaaaaa-00000000000{number}", labels={"user": str(number % 2)})
    assert len([info async for info in provider.list({"oe-install": "abc123"})]) == 5
    assert len([info async for info in provider.list({"oe-install": "abc123", "user": "0"})]) == 3
    assert [info async for info in provider.list({"oe-install": "other"})] == []


async def test_a_taken_name_of_somebody_else(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """A name that is taken without our label is not adopted.

    Mutation: whatever has the name is taken over, and later deleted
    """
    sandbox = await made(provider, face)
    face.engine.boxes[sandbox.ref.id].labels.clear()
    assert await provider.find("oe-aaaaaaaa-000000000001") == []
    with pytest.raises(ProviderError, match="already exists"):
        await made(provider, face)
    assert face.engine.alive() == 1


async def test_delete_during_a_change(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Refused between two states: retryable, and core's retries succeed once the change has ended.

    Mutation: a 409 is final, or taken for gone
    """
    from openenv_sandbox.owner import delete_ref

    sandbox = await made(provider, face)
    face.changing.add(sandbox.ref.id)
    with pytest.raises(ProviderError) as caught:
        await provider.delete(sandbox.ref)
    assert (caught.value.retryable, caught.value.outcome) == (True, "failed")
    task = asyncio.ensure_future(delete_ref(provider, sandbox.ref, deadline=30.0))
    await asyncio.sleep(0.2)
    face.changing.clear()
    await task
    assert face.engine.alive() == 0


async def test_extend_never_shortens(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Mutation: set_ttl is called with whatever is asked, and brings the end nearer"""
    sandbox = await made(provider, face, timeouts={"lifetime": 7200, "episode": 3600})
    before = sandbox.info.expires_at
    assert abs(await sandbox.extend(600) - before) < 61
    assert await sandbox.extend(10_000) > before + 2000


async def test_the_token_changes_with_a_restart(provider: DaytonaProvider, face: DaytonaFace) -> None:
    sandbox = await made(provider, face)
    first = await sandbox.endpoint(8000)
    assert list(first.headers) == ["X-Daytona-Preview-Token"]
    assert not first.public
    await sandbox.pause()
    await sandbox.resume()
    assert (await sandbox.endpoint(8000)).headers != first.headers


async def test_a_command_longer_than_an_argument(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """What no command line holds goes as a file; the vendor's ten seconds do not apply."""
    sandbox = await made(provider, face)
    words = ["x" * 60_000, "y" * 60_000]
    out = bytearray()
    result = await sandbox.exec_raw(
        ["/bin/sh", "-c", 'printf "%s" "$@" | wc -c', "sh", *words],
        env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: out.extend(data),
    )  # fmt: skip
    assert (result.exit_code, bytes(out).strip()) == (0, b"120000")


async def test_output_in_pieces(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Output comes while the command runs and once; more than one answer holds comes whole; failing looks cost nothing.

    Mutation: the offsets are not kept, or one failing look ends the command
    """
    sandbox = await made(provider, face)
    failed = face.engine.faults.add("exec", status=502, times=2, match=lambda args: "a=$4" in args["command"])
    script = "printf one; sleep 0.4; printf two; sleep 0.4; head -c 2500000 /dev/zero >&2; printf end; exit 7"
    streams: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    running = sandbox.exec_raw(
        ["/bin/sh", "-c", script],
        env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: streams[name].append(data),
    )  # fmt: skip
    result = await asyncio.wait_for(running, HANG_S)
    assert (result.exit_code, failed.hits) == (7, 2)
    assert b"".join(streams["stdout"]) == b"onetwoend"
    assert len(streams["stdout"]) >= 2
    assert b"".join(streams["stderr"]) == bytes(2_500_000)


async def test_the_reply_to_a_start_is_lost(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """The command ran, and its folder tells what came of it; it is not run again.

    Mutation: a lost reply is an error although the result is there, or the command runs twice
    """
    sandbox = await made(provider, face)
    lost = face.engine.faults.add("exec", when="after", status=0, match=lambda args: "echo once" in args["command"])
    out = bytearray()
    running = sandbox.exec_raw(
        ["/bin/sh", "-c", "echo once >>/tmp/times; cat /tmp/times; exit 7"],
        env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: out.extend(data),
    )  # fmt: skip
    assert (await asyncio.wait_for(running, HANG_S)).exit_code == 7
    assert (bytes(out), lost.hits) == (b"once\n", 1)


async def test_a_pause_under_a_command(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """A command waits a pause out, as the server does that core holds by one; a new one says that it is paused.

    Mutation: the server counts as ended when its sandbox is paused
    """
    sandbox = await made(provider, face)
    look = face.engine.faults.add("exec", hang=True, status=502, match=lambda args: "a=$4" in args["command"])
    none: dict[str, Any] = {"env": {}, "cwd": None, "user": None, "stdin": None}
    out = bytearray()
    words = ["/bin/sh", "-c", "echo one; sleep 0.3; echo two; exit 7"]
    running = asyncio.ensure_future(sandbox.exec_raw(words, **none, on_output=lambda name, data: out.extend(data)))
    await look.reached(HANG_S)
    await sandbox.pause()
    with pytest.raises(ExecError, match="paused"):
        await sandbox.exec_raw(["true"], **none, on_output=lambda name, data: None)
    look.release()
    await asyncio.sleep(0.2)
    assert not running.done()
    await sandbox.resume()
    assert (await asyncio.wait_for(running, HANG_S)).exit_code == 7
    assert bytes(out) == b"one\ntwo\n"


async def test_tmp_is_emptied_between_two_commands(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Agents do that; the next command makes what it needs anew.

    Mutation: the folder made at first is taken for there
    """
    sandbox = await made(provider, face)

    async def run(script: str) -> int | None:
        running = sandbox.exec_raw(
            ["/bin/sh", "-c", script], env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: None
        )
        code: int | None = (await asyncio.wait_for(running, HANG_S)).exit_code
        return code

    assert await run("exit 3") == 3
    # It removes the file of its own exit code as well, unless that was read before.
    with contextlib.suppress(ExecError):
        assert await run("rm -rf /tmp/.oe-*; exit 4") in (4, None)
    assert [await run("exit 5"), await run("exit 6")] == [5, 6]


async def test_a_supervisor_that_was_killed(provider: DaytonaProvider, face: DaytonaFace) -> None:
    """Nobody knows the exit code then, and it is not taken for 0.

    Mutation: a missing exit code is success, or is waited for without end
    """
    sandbox = await made(provider, face)
    script = 'printf on; kill -9 $PPID; sleep 0.2; kill -9 "$(cat /tmp/.oe-*/1/pid)"; sleep 1000'
    running = sandbox.exec_raw(
        ["/bin/sh", "-c", script], env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: None
    )
    assert (await asyncio.wait_for(running, HANG_S)).exit_code is None
