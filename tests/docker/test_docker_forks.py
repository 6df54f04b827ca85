"""Forks of a warm sandbox on a real daemon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import launch
from openenv_sandbox.client.generic import GenericEnvClient
from openenv_sandbox.errors import FileError

if TYPE_CHECKING:
    import docker

    from openenv_sandbox.provider import Prepared, Sandbox
    from tests.docker.docks import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

HI: dict[str, Any] = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}


async def test_a_warm_server_into_connected_clients(echo_image: Prepared, engine: docker.DockerClient) -> None:
    """Each has the warm one's files and variables, a server and an episode of its own; nothing is left.

    Mutation: forks boot the origin's image instead of the snapshot
    """

    def snapshots() -> set[str]:
        return {str(image.id) for image in engine.images.list("openenv/snapshot")}

    before = await asyncio.to_thread(snapshots)
    fields: dict[str, Any] = {"env": {"MARK": "m"}, "secrets": {"API_KEY": "s3kret-canary"}}
    async with launch(echo_image.ref, provider="docker", **fields) as env:
        await env.reset()
        await env.step(HI)
        await env.sandbox.exec("echo warm > /app/warm", check=True)
        async with env.sandbox.fork(3, client=GenericEnvClient) as clients:
            assert len(await asyncio.to_thread(snapshots)) == len(before) + 1
            for client in clients:
                assert (await client.sandbox.exec("cat /app/warm; printf $MARK$API_KEY", redact=False)).text() == (
                    "warm\nms3kret-canary"
                )
                await client.reset()
                assert "hi" in str((await client.step(HI)).observation)
                assert (await client.state())["step_count"] == 1
            assert (await env.state())["step_count"] == 1
    assert await asyncio.to_thread(snapshots) == before


async def test_a_strict_server_and_its_fork(echo_image: Prepared) -> None:
    """The strict profile serves, runs commands and takes files where it may, and its fork is strict too.

    Mutation: `_made` hands on no fields of the spec
    """
    async with launch(echo_image.ref, provider="docker", hardening="strict") as env:
        async with env.sandbox.fork(1, client=GenericEnvClient) as (fork,):
            for client in (env, fork):
                await client.reset()
                assert "hi" in str((await client.step(HI)).observation)
                box = client.sandbox
                await box.write("/tmp/deep/file", b"\x00\xff")
                assert await box.read("/tmp/deep/file") == b"\x00\xff"
                with pytest.raises(FileError, match=r"[Rr]ead-only"):
                    await box.write("/app/file", b"x")
                process = await box.spawn("echo begun; sleep 60")
                await process.kill()
                status = (await box.exec("cat /proc/self/status; cat /sys/fs/cgroup/pids*/pids.max")).text()
                assert "CapEff:\t0000000000000000" in status
                assert "NoNewPrivs:\t1" in status


CHANGES = r"""
mkdir -p /srv/new/deep && echo a > /srv/new/deep/a && chown -R 65534:65534 /srv/new && chmod 2750 /srv/new/deep
ln -s /nowhere /srv/link && mkdir /srv/empty && chmod 700 /opt && printf '\\000' > "/srv/a b" && mkfifo /srv/pipe
echo more >> /etc/passwd
"""
SHOW = "find /srv /opt /etc/passwd -printf '%p %y %m %U:%G %s %l\n' | sort | sed 's/ d \\(.*\\) [0-9]* $/ d \\1/'"


async def test_a_snapshot_without_variables_has_every_change(dock: Docker) -> None:
    """Kinds, modes, owners, links; and what was deleted is not there.

    Mutation: `_changed` does not look for deletions
    """
    box = await dock.create(secrets={"API_KEY": "s3kret-canary"})
    await run(box, CHANGES)
    for gone in ("", "/etc/debian_version"):
        await run(box, f"rm -f {gone}")
        kept = await box.snapshot()
        again = await dock.create(prepared=kept)
        assert await run(again, SHOW) == await run(box, SHOW)
        assert (await run(again, "ls /etc/debian_version || true")) == (b"/etc/debian_version\n" if not gone else b"")
        assert b"API_KEY" not in await run(again, "env")
        await again.delete()
        await dock.provider.drop(kept)


async def run(sandbox: Sandbox, script: str) -> bytes:
    out: list[bytes] = []
    result = await sandbox.exec_raw(
        ["sh", "-c", script],
        env={},
        cwd=None,
        user=None,
        stdin=None,
        on_output=lambda name, data: out.append(data) if name == "stdout" else None,
    )
    assert result.exit_code == 0
    return b"".join(out)
