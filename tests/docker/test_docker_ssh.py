"""A daemon on another machine, reached by ssh: a real sshd on the loopback plays that machine's."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import _builders, _dockerhost, _dockerssh, build, image, launch
from openenv_sandbox.errors import ConfigError, ProviderUnavailable
from tests.conftest import ENGINES_REQUIRED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from openenv_sandbox.provider import Prepared

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

HI: dict[str, Any] = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an ``ssh`` that knows the machine ``far`` and how to log in there."""
    if SSHD is None or shutil.which("ssh") is None or os.getuid() != 0:
        say = pytest.fail if ENGINES_REQUIRED else pytest.skip
        say("sshd is missing: apt-get install openssh-server (and its tests run as root)")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPidFile {folder}/pid\nPasswordAuthentication no\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(
        f"Host far\nHostName 127.0.0.1\nPort {port}\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\n"
        f"Host stranger\nHostName 127.0.0.1\nPort {port}\nIdentityFile {folder}/stranger\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            threading.Event().wait(0.05)
        yield folder
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def far(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://root@far")
    yield "ssh://root@far"
    for forward in list(_dockerssh._open.values()):
        forward.close()
        assert not Path(forward.folder).exists()
    _dockerssh._open.clear()


async def test_a_daemon_behind_ssh(far: str, echo_image: Prepared) -> None:
    """Launched, stepped, commands with input: one ssh for all, and the port by a relay, since it is another machine's.

    Mutation: `DockerHost.local` takes a forwarded socket for this machine's daemon
    """
    async with launch(echo_image.ref, provider="docker") as env:
        assert env.sandbox.ref.scope == far
        assert not _dockerssh.reached(_dockerhost.resolve()).local
        await env.reset()
        assert "hi" in str((await env.step(HI)).observation)
        assert (await env.sandbox.exec("wc -c; exit 3", stdin=b"in" * 500_000)).stdout.split() == [b"1000000"]
    assert len(_dockerssh._open) == 1


async def test_a_folder_is_built_there(
    far: str, tmp_path: Path, engine: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"ssh-env-{os.getpid()}"
    folder.mkdir()
    (folder / "openenv.yaml").write_text(f"name: {folder.name}\n")
    (folder / "Dockerfile").write_text('FROM scratch\nCOPY openenv.yaml /\nCMD ["x"]\n')
    parsed, host = await asyncio.to_thread(image.parse, folder), _dockerhost.resolve()
    for _ in ("the docker command", "the classic builder"):
        built = await build.build_folder(parsed, host=host, on_log=lambda line: None, keep_openenv=True)
        engine.images.remove(built.tag)
        monkeypatch.setattr(_builders, "find_buildkit", lambda: None)


def test_a_connection_that_broke_is_opened_anew(far: str) -> None:
    """Mutation: `reached` does not look whether its ssh still lives"""
    host = _dockerhost.resolve()
    first = _dockerssh.reached(host)
    assert _dockerssh.reached(host) == first
    (forward,) = _dockerssh._open.values()
    forward.process.kill()
    forward.process.wait()
    second = _dockerssh.reached(host)
    assert second != first
    assert _dockerhost.probe(second) == ("ready", "")
    assert not Path(forward.folder).exists()


async def test_who_is_not_let_in_is_told_so(far: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ssh's words, without a question and without anything left; an address that is an option is refused."""
    monkeypatch.setenv("DOCKER_HOST", "ssh://root@stranger")
    with pytest.raises(ProviderUnavailable, match="Permission denied") as caught:
        await launch("me/env:1", provider="docker")
    assert "without a question" in str(caught.value.hint)
    monkeypatch.setenv("DOCKER_HOST", "ssh://-oProxyCommand=evil")
    with pytest.raises(ConfigError, match="names no machine"):
        await launch("me/env:1", provider="docker")
    assert not _dockerssh._open


def test_nothing_outlives_a_killed_process(far: str) -> None:
    """ssh ends with the process that started it, also by SIGKILL; its socket's folder goes with the next one.

    Mutation: `_sweep` removes nothing
    """
    code = (
        "import os, sys; from openenv_sandbox import _dockerhost as d, _dockerssh as s; s.reached(d.resolve());"
        "(f,) = s._open.values(); print(f.process.pid, f.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout
    pid, folder = out.split()
    for _ in range(400):
        if not runs(pid):
            break
        threading.Event().wait(0.05)
    else:
        pytest.fail("ssh lives on")
    assert Path(folder).exists()
    _dockerssh.reached(_dockerhost.resolve())
    assert not Path(folder).exists()


def runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
