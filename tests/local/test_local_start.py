"""How the server of a local sandbox is found, started and watched."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path

import pytest
from openenv_providers import _local_bwrap as bwrap
from openenv_providers import _local_plan as plan
from openenv_providers import local
from openenv_providers._local_link import Link
from openenv_providers.local import LocalProvider

from openenv_sandbox.errors import CapabilityError, ConfigError, ExecError, ImageError, ProviderUnavailable, TrustError
from openenv_sandbox.provider import Image
from openenv_sandbox.spec import SandboxSpec
from tests.local.sandboxes import SLEEP, TINY, Maker, about, eventually, get, processes, run

pytestmark = pytest.mark.anyio

APP = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": NAME.encode()})
"""
HTTP = (
    "import os, http.server as h; H = h.SimpleHTTPRequestHandler; H.log_message = lambda *a: None; "
    "h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()"
)


def folder(root: Path, files: dict[str, str]) -> Path:
    """An environment folder called ``my_env``."""
    for name, text in {"openenv.yaml": "name: my_env\napp: server.app:app\n", **files}.items():
        path = root / "my_env" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "my_env"


SCRIPT = (
    '[project]\nname = "my-env"\ndependencies = ["openenv>=0.1"]\n[project.scripts]\nserver = "{}.server.app:main"\n'
)
MAPPED = '[tool.setuptools]\npackage-dir = { "other_name" = "." }\n'
FORMS = {
    "flat": {"server/app.py": "from models import NAME" + APP, "models.py": "NAME = 'flat'"},
    "relative": {
        "pyproject.toml": SCRIPT.format("my_env"),
        "server/app.py": "from ..models import NAME" + APP,
        "models.py": "NAME = 'relative'",
    },
    "mapped": {
        "pyproject.toml": SCRIPT.format("other_name") + MAPPED,
        "server/app.py": "from other_name.models import NAME" + APP,
        "models.py": "NAME = 'mapped'",
    },
    "package": {
        "__init__.py": "",
        "server/app.py": "from ..models import NAME" + APP,
        "models.py": "NAME = 'package'",
    },
    "src": {
        "pyproject.toml": SCRIPT.format("my_env"),
        "src/my_env/server/app.py": "from my_env.models import NAME" + APP,
        "src/my_env/models.py": "NAME = 'src'",
    },
    "application": {
        "openenv.yaml": "name: my_env\napp: server.app:application\n",
        "pyproject.toml": SCRIPT.format("my_env"),
        "server/app.py": "NAME = 'application'" + APP.replace("def app", "def application"),
    },
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_way_of_importing(make: Maker, tmp_path: Path, form: str) -> None:
    """Flat and relative imports, the folder as package under its own or another name, src layout, another attribute.

    Mutation: `plan.read` takes ``app`` of openenv.yaml first, or puts no package of the folder's name on the path
    """
    sandbox = await make(folder(tmp_path, FORMS[form]))
    assert await get(sandbox) == form.encode()


async def test_nothing_says_what_to_start(make: Maker, tmp_path: Path) -> None:
    """Without a script and an app the error names ``command``."""
    empty = folder(tmp_path, {"openenv.yaml": "name: my_env\n"})
    with pytest.raises(ImageError) as caught:
        await make(empty)
    assert "command=" in str(caught.value)
    assert (await run(await make(empty, command=SLEEP), "pwd"))[1] == f"{empty}\n"


async def test_uvicorn_as_command_gets_the_socket(make: Maker) -> None:
    """A uvicorn command keeps its options but host and port: it listens on the socket that was made for it.

    Mutation: `server_argv` passes the command on as it is
    """
    command = (
        "python",
        "-m",
        "uvicorn",
        "tiny_env.server.app:app",
        "--host",
        "0.0.0.0",
        "--port=8000",
        "--workers",
        "1",
    )
    argv, socket_wanted = plan.server_argv(command, plan.read(TINY), plan.running())
    assert (argv, socket_wanted) == ([*command[:4], "--workers", "1", "--fd", "{fd}"], True)
    sandboxes = [await make(command=command) for _ in range(2)]
    assert len({(await about(sandbox))["env"]["PORT"] for sandbox in sandboxes}) == 2


async def test_another_command_gets_a_port(make: Maker) -> None:
    """What is not uvicorn is told a free port."""
    sandbox = await make(command=("python", "-c", HTTP))
    assert b"pyproject.toml" in await eventually(get, sandbox, "/")
    assert sandbox.port != sandbox.spec_port


async def test_a_taken_port_is_replaced_once(make: Maker) -> None:
    """Where somebody takes the port before the server binds it, the server is started again with another one.

    Mutation: `Supervisor._server_ended` does not start again
    """
    thief = (
        "import os, socket, time; s = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); time.sleep(1000)"
    )
    wait = "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['PORT']))).close()"
    script = (
        'echo "$PORT"; if [ ! -e "$HOME/tried" ]; then touch "$HOME/tried"; (setsid python -c "$THIEF" &) ; '
        'until python -c "$WAIT" 2>/dev/null; do :; done; exit 1; fi; exec python -c "$HTTP"'
    )
    sandbox = await make(command=script, env={"THIEF": thief, "WAIT": wait, "HTTP": HTTP})
    first = sandbox.port

    async def moved() -> bytes:
        if sandbox.port == first:
            raise OSError("the same port")
        return await get(sandbox, "/")

    assert b"pyproject.toml" in await eventually(moved)


async def test_a_command_that_does_not_exist(make: Maker) -> None:
    """It ends at once, with the reason as its last words.

    Scenario: E01
    Mutation: `become` returns without a word
    """
    sandbox = await make(command=("no-such-server",))
    end = await asyncio.wait_for(sandbox.wait_exit(), 30)
    assert (end.code, end.tail) == (127, b"no-such-server: No such file or directory\n")


async def test_a_server_that_dies(make: Maker) -> None:
    """Its exit code and last words are there as soon as it ends, and the endpoint is refused from then on.

    Scenario: E02
    Mutation: `Hub` does not tell its owners, or the listening socket stays open in this process
    """
    sandbox = await make()
    with pytest.raises(OSError, match=r"closed|reset|refused|urlopen"):
        await get(sandbox, "/die")
    end = await asyncio.wait_for(sandbox.wait_exit(), 30)
    assert (end.code, end.tail.endswith(b"dying now\n")) == (17, True)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", sandbox.port)) != 0


async def test_unread_output_is_bounded(make: Maker) -> None:
    """A server that writes 50 MB which nobody reads goes on, and the end of it is kept.

    Scenario: F16
    Mutation: `read_output` is not called, or keeps everything
    """
    sandbox = await make(
        command=("/bin/sh", "-c", "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo end; " + SLEEP[2])
    )

    async def ended() -> bytes:
        logs = await sandbox.logs()
        if not logs.endswith(b"end\n"):
            raise OSError("more to come")
        return logs

    assert 2**19 < len(await eventually(ended)) <= 2**20
    assert await sandbox.logs(tail=1) == b"end\n"
    link = await Link.open(sandbox.folder)
    status = await asyncio.to_thread(Path(f"/proc/{link.process()}/status").read_text)
    link.close()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 40_000


async def test_cancelled_commands_leave_no_process(make: Maker, state_dir: Path) -> None:
    """Fifty commands cancelled at any time leave no process behind.

    Scenario: F19
    Mutation: `_local_exec.run` keeps the connection open, or `Supervisor.lost` does nothing
    """
    sandbox = await make(command=SLEEP)
    tasks = [asyncio.ensure_future(run(sandbox, "(setsid sleep 43210 &) ; sleep 43210")) for _ in range(50)]
    for number, task in enumerate(tasks):
        if number % 5 == 0:
            await asyncio.sleep(0.01)
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    assert await run(sandbox, "echo still") == (0, "still\n")
    assert await asyncio.to_thread(processes, "43210", files=("cmdline",)) == []


async def test_starts_are_bounded(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for at once, only so many are being started at a time.

    Scenario: F19
    Mutation: `create` starts in an unbounded pool of threads
    """
    most = 0

    def count(job: object) -> None:
        nonlocal most
        most = max(most, make.provider._threads._lanes[loop].busy)
        raise OSError("not now")

    from openenv_providers import _local_start

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(_local_start, "start", count)
    results = await asyncio.gather(*(make(command=SLEEP) for _ in range(60)), return_exceptions=True)
    assert {str(r) for r in results} == {"the supervisor cannot be started: not now [provider local]"}
    assert 1 < most <= local.STARTS_AT_ONCE


async def test_nothing_blocks_the_loop(make: Maker, no_blocking: None) -> None:
    """Create, commands, requests and delete never block the event loop."""
    sandbox = await make()
    assert await run(sandbox, "cat", stdin=b"x" * 300_000) == (0, "x" * 300_000)
    assert (await about(sandbox))["greeting"] == "tiny"
    assert [info.status async for info in make.provider.list({})] == ["running"]
    await sandbox.logs()
    await sandbox.delete()
    assert await make.provider.find(sandbox.ref.id) == []


async def test_a_paused_sandbox_refuses_commands(make: Maker, isolation: str) -> None:
    """Nothing runs in it until it goes on."""
    sandbox = await make()
    if isolation == "none":
        with pytest.raises(CapabilityError):
            await sandbox.pause()
        return
    await sandbox.pause()
    with pytest.raises(ExecError, match="paused"):
        await run(sandbox, "true")
    request = asyncio.ensure_future(about(sandbox))
    assert [info.status async for info in make.provider.list({})] == ["paused"]
    assert not request.done()
    await sandbox.resume()
    assert (await request)["greeting"] == "tiny"


async def test_without_bubblewrap_it_says_so_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """One warning for all sandboxes of the process; the isolation has its name; what cannot be kept is refused.

    Mutation: `_warned` is not set, or `effective_capabilities` returns the class's
    """
    local._warned.clear()
    make = Maker("auto", bwrap=str(tmp_path / "absent"))
    caps = make.provider.effective_capabilities()
    assert (caps.isolation, sorted(caps.network), caps.pause) == ("none", ["full"], False)
    assert caps.sizes.limits == set()
    assert LocalProvider.check({"bwrap": str(tmp_path / "absent")}).hint == bwrap.INSTALL
    with caplog.at_level(logging.WARNING, logger="openenv.provider.local"):
        for _ in range(2):
            assert (await make(command=SLEEP)).info.isolation == "none"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert bwrap.INSTALL in caplog.text
    with pytest.raises(CapabilityError, match=r"network .* needs bubblewrap"):
        await make(command=SLEEP, network="none")
    with pytest.raises(CapabilityError, match=r"hardening .* needs bubblewrap"):
        await make(command=SLEEP, hardening="strict")
    with pytest.raises(ProviderUnavailable, match="not installed"):
        await Maker("bwrap", bwrap=str(tmp_path / "absent"))(command=SLEEP)
    foreign = Image(kind="folder", name="x", path=str(TINY), source="hf://org/space@abc")
    with pytest.raises(TrustError, match="without isolation"):
        await make.provider.prepare(SandboxSpec(image="hf://org/space"), foreign, on_log=lambda line: None)
    trusting = SandboxSpec(image="hf://org/space", trust=True)
    assert (await make.provider.prepare(trusting, foreign, on_log=lambda line: None)).ref == str(TINY)
    await make.close()


@pytest.mark.bwrap
async def test_bubblewrap_that_does_not_work(tmp_path: Path) -> None:
    """An executable that cannot make namespaces counts as none, with its own words as the reason."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no permissions to create a namespace >&2; exit 1\n")
    broken.chmod(0o755)
    provider = LocalProvider({"bwrap": str(broken)})
    assert provider.effective_capabilities().isolation == "none"
    assert "no permissions to create a namespace" in provider._why_not


async def test_another_kind_of_image() -> None:
    """A registry ref is refused with what local runs."""
    with pytest.raises(ImageError, match="folders and installed packages"):
        await LocalProvider({}).prepare(SandboxSpec(image="x:1"), Image("ref", "x:1"), on_log=lambda line: None)
    with pytest.raises(ConfigError, match="isolatoin"):
        LocalProvider({"isolatoin": "none"})


async def test_where_the_kernel_is_not_linux(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    """Without prctl, /proc and namespaces, process groups end what a sandbox and its commands started.

    Mutation: `_kill_everything` and `lost` rely on the process table alone
    """
    monkeypatch.setattr(bwrap, "LINUX", False)
    make = Maker("auto")
    assert make.provider._why_not == "bubblewrap is for Linux only"
    sandbox = await make(command=("/bin/sh", "-c", "sleep 32101 & sleep 32101"))
    task = asyncio.ensure_future(run(sandbox, "sleep 32102 & sleep 32102"))

    async def started() -> None:
        if not await asyncio.to_thread(processes, "32102"):
            raise OSError("not yet")

    await eventually(started)
    task.cancel()
    await asyncio.wait({task})
    assert await run(sandbox, "echo on") == (0, "on\n")
    assert await asyncio.to_thread(processes, "32102") == []
    await make.close()
    assert await asyncio.to_thread(processes, "32101") == []


async def test_long_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A state folder whose path is longer than a socket's name may be works where the kernel can help."""
    deep = tmp_path / ("d" * 100)
    monkeypatch.setenv("OPENENV_STATE_DIR", str(deep))
    make = Maker("none")
    sandbox = await make(command=SLEEP)
    assert await run(sandbox, "echo here") == (0, "here\n")
    await make.close()
    monkeypatch.setattr(sys, "platform", "darwin")
    from openenv_providers import _local_link

    with pytest.raises(ConfigError, match="too long"), _local_link.address(deep / "local" / "oe-x"):
        pass


async def test_leftover_folders_are_swept(make: Maker, state_dir: Path) -> None:
    """The folder of a sandbox that ended by itself goes with its time; one that runs, or is young, stays."""
    import json

    ended = await make(command=("/bin/sh", "-c", "exit 3"))
    young = await make(command=("/bin/sh", "-c", "exit 4"))
    running = await make(command=SLEEP)
    await asyncio.gather(ended.wait_exit(), young.wait_exit())
    for sandbox in (ended, running):
        file = sandbox.folder / "sandbox.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "expires_at": 1.0}))
    make.provider._swept = False
    await make(command=SLEEP)
    assert [sandbox.folder.exists() for sandbox in (ended, young, running)] == [False, True, True]
