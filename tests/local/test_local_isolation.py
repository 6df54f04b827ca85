"""What a sandbox on this machine sees of it, as root and as anybody else."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.sandboxes import SLEEP, TINY, Maker, about, get, none_left, processes, run

pytestmark = [pytest.mark.anyio, pytest.mark.bwrap]


@pytest.fixture
def isolation() -> str:
    return "bwrap"


async def test_nothing_of_the_user_is_visible(make: Maker, state_dir: Path) -> None:
    """Neither the home folder, nor other folders, nor keys of the system, nor the sandbox's own files outside.

    Scenario: F19
    Mutation: `command` binds /etc or / as a whole
    """
    canary = Path.home() / f".openenv-canary-{os.getpid()}"
    canary.write_text("secret")
    try:
        sandbox = await make(command=SLEEP)
        for path in (canary, state_dir / "journal", "/etc/shadow", "/root/.ssh", sandbox.folder / "control", __file__):
            assert (await run(sandbox, f"test -e '{path}'"))[0] == 1, path
        _, seen = await run(sandbox, f"ls -A {Path.home()} 2>/dev/null; exit 0")
        assert canary.name not in seen
    finally:
        canary.unlink()


async def test_the_interpreter_runs_where_it_lies(make: Maker) -> None:
    """The interpreter, its base and the environment's folder are there and cannot be written; home and /tmp can."""
    sandbox = await make()
    assert (await about(sandbox))["greeting"] == "tiny"
    for place in {sys.prefix, sys.base_prefix, str(TINY), "/usr", "/etc", "/"}:
        code, text = await run(sandbox, f"touch '{place}/x'")
        assert (code, "Read-only" in text) == (1, True), place
    script = 'cd && touch x && touch "$TMPDIR/y" && touch /var/tmp/z && echo "$HOME"'
    assert await run(sandbox, script) == (0, "/home/sandbox\n")
    assert (sandbox.folder / "home" / "x").exists()


async def test_nothing_is_inherited(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the caller stay outside; those of the spec arrive; secrets reach the server and no command line.

    Mutation: the supervisor is started with ``env=os.environ``, or secrets are set by bubblewrap's arguments
    """
    monkeypatch.setenv("CANARY", "inherited-canary")
    sandbox = await make(env={"GIVEN": "ä b"}, secrets={"TOKEN": "s3kret-canary"})
    found = (await about(sandbox))["env"]
    assert (found["GIVEN"], found["TOKEN"], found.get("CANARY")) == ("ä b", "s3kret-canary", None)
    code, seen = await run(sandbox, "cat /proc/*/environ | tr '\\0' '\\n'; env; exit 0")
    assert (code, "inherited-canary" in seen) == (0, False)
    assert await asyncio.to_thread(processes, "inherited-canary") == []
    assert "TOKEN" not in (await run(sandbox, "env"))[1]
    assert not await asyncio.to_thread(processes, "s3kret-canary", files=("cmdline",))
    files = [p.read_bytes() for p in sandbox.folder.rglob("*") if p.is_file()]
    assert not any(b"s3kret-canary" in data for data in files)


async def test_namespaces_and_rights(make: Maker) -> None:
    """Own processes, own shared memory, no capability, and a first process that cannot be killed or read.

    Mutation: ``--unshare-ipc``, ``--cap-drop`` or PR_SET_DUMPABLE is left out
    """
    sandbox = await make(command=SLEEP)
    for kind in ("pid", "ipc", "uts"):
        own = os.readlink(f"/proc/self/ns/{kind}")
        assert (await run(sandbox, f"readlink /proc/self/ns/{kind}"))[1].strip() != own
    assert (await run(sandbox, "grep CapEff /proc/self/status"))[1].split()[1] == "0" * 16
    assert int((await run(sandbox, "ls /proc | grep -c '^[0-9]'"))[1]) <= 6
    assert (await run(sandbox, "kill -9 1; kill -STOP 1; cat /proc/1/environ; ls -l /proc/1/fd/3"))[0] != 0
    assert await run(sandbox, "echo alive") == (0, "alive\n")


async def test_no_network_is_none(make: Maker) -> None:
    """Nothing is reachable, not even this machine's loopback; the server is, with big answers; its death ends them.

    Mutation: the listening socket of the machine is passed into a sandbox without network
    """
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        sandbox = await make(network="none")
        script = (
            "import socket, sys\n"
            f"for place in (('127.0.0.1', {port}), ('8.8.8.8', 53), ('169.254.169.254', 80), ('172.17.0.1', 80)):\n"
            "    try: socket.create_connection(place, 2); print('reached', place)\n"
            "    except OSError: pass\n"
            "try: socket.getaddrinfo('example.com', 80); print('resolved')\n"
            "except OSError: print('no name')\n"
        )
        assert await run(sandbox, 'python -c "$CODE"', env={"CODE": script}) == (0, "no name\n")
    assert (await about(sandbox))["env"]["PORT"] == "8000"
    assert len(await get(sandbox, "/big")) == 16 * 2**20
    links = await run(sandbox, "ls -l /proc/2/fd | grep -c 'socket:'; ls /sys/class/net 2>/dev/null; exit 0")
    assert links[0] == 0
    endpoint = await sandbox.endpoint(8000)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
    writer.write(b"GET /hang HTTP/1.1\r\n")
    await asyncio.sleep(0.1)
    await sandbox.delete()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    assert "no longer runs" in str(endpoint.failure())


async def test_two_without_network_use_the_same_port(make: Maker) -> None:
    """Each has its own loopback, so each listens where it likes, and each endpoint leads to its own."""
    one, two = await make(network="none", env={"WHO": "1"}), await make(network="none", env={"WHO": "2"})
    assert [(await about(one))["env"]["WHO"], (await about(two))["env"]["WHO"]] == ["1", "2"]
    server = (
        "from http.server import HTTPServer, SimpleHTTPRequestHandler as Handler\n"
        "HTTPServer(('127.0.0.1', 9000), Handler).serve_forever()"
    )
    await run(one, 'cd && echo file of one > f && (python -c "$CODE" >/dev/null 2>&1 &)', env={"CODE": server})
    await run(
        one, "until python -c \"import socket; socket.create_connection(('127.0.0.1', 9000))\" 2>/dev/null; do :; done"
    )
    endpoint = await one.endpoint(9000)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
    writer.write(b"GET /f HTTP/1.0\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 30)).endswith(b"file of one\n")
    writer.close()
    await endpoint.aclose()


UNPRIVILEGED = """
import asyncio, os, sys
from openenv_providers import _local_plan as plan
from tests.local.sandboxes import Maker, TINY, eventually, get, run
async def main():
    here = plan.running()
    site = [p for p in sys.path if p.endswith("-packages")]
    python = plan.Interpreter(here.executable, (*here.prefixes, *site), here.base, here.version)
    make = Maker("bwrap")
    make.provider._plans[str(TINY)] = plan.read(TINY), python
    async def given(path, on_log): return make.provider._plans[path]
    make.provider._plan = given
    for network in ("full", "none"):
        sandbox = await make(network=network, command=("python3", "-c", SERVER))
        text = (await run(sandbox, "id -u; test -e /etc/shadow; echo $?; kill -9 1; touch /usr/x"))[1]
        await eventually(get, sandbox)
        print(network, text.split()[:2], "Read-only" in text, (await get(sandbox))[:5])
        await sandbox.pause()
        await sandbox.resume()
        await sandbox.delete()
asyncio.run(main())
"""
SERVER = """
import os, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
async def test_an_unprivileged_user_has_the_same() -> None:
    """As a user without rights all of it works too: namespaces, relay, pause, delete.

    Mutation: `command` maps the user to root (``--uid 0``)
    """
    python = await asyncio.to_thread(_python_of_nobody)
    state = Path("/var/tmp") / f"openenv-nobody-{os.getpid()}"
    state.mkdir()
    os.chown(state, 65534, 65534)
    root = Path(__file__).parents[2]
    path = [str(root), str(root / "providers"), *(p for p in sys.path if p.endswith("-packages"))]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path), "OPENENV_STATE_DIR": str(state)}
    script = f"SERVER = {SERVER!r}\n" + UNPRIVILEGED
    done = await asyncio.to_thread(as_nobody, python, script, env=env)
    assert none_left(str(state)) == []
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stdout == "full ['65534', '1'] True b'hello'\nnone ['65534', '1'] True b'hello'\n"
    assert list((state / "local").iterdir()) == []
    (state / "local").rmdir()
    state.rmdir()


def as_nobody(python: str, script: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", script],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=120,
        user=65534,
        group=65534,
        extra_groups=[],
        **kw,
    )


def _python_of_nobody() -> str:
    """An interpreter of our version that anybody may run."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            if as_nobody(python, "import pyexpat").returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no interpreter of this version that another user may run")
