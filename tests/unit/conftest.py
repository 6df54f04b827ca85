"""Sandboxes that are child processes, for what is built on `exec_raw`: any shell, any PATH, any capabilities."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
from openenv_sandbox.errors import ExecError
from openenv_sandbox.provider import Endpoint, Exit, RawResult, Sandbox, SandboxInfo, SandboxRef
from openenv_sandbox.running import RunningSandbox
from openenv_sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from openenv_sandbox.provider import OutputSink

TOOLS = (
    "base64 cat chmod chown cp cut dd env expr false find grep head id kill ln ls mkdir mkfifo mktemp mv od printf "
    "readlink rm rmdir sed seq setpriv sh sha256sum sleep sort stat su tail tar tee test touch tr true wc"
).split()
NOT_BUSYBOX = ("python3", "bash", "dash")


class ChildSandbox(Sandbox):
    """A folder and child processes in it.

    It is exactly as able as ``caps`` says: what is not declared is refused loudly, so core must not rely on it.
    """

    def __init__(self, folder: Path, caps: ExecCapabilities, shell: Sequence[str], path: str) -> None:
        self.folder, self.caps, self.shell, self.path = folder, caps, tuple(shell), path
        self.info = SandboxInfo(SandboxRef("child", "here", folder.name), "running")
        self.argvs: list[list[str]] = []
        self.children: list[asyncio.subprocess.Process] = []
        self.lose_code = False
        self.stdin_cut: int | None = None

    async def exec_raw(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        user: str | None,
        stdin: bytes | AsyncIterator[bytes] | None,
        on_output: OutputSink,
    ) -> RawResult:
        assert not env or self.caps.env
        assert cwd is None or self.caps.cwd
        assert user is None or self.caps.user
        assert stdin is None or self.caps.stdin
        assert not isinstance(stdin, bytes) or len(stdin) <= (self.caps.max_stdin or 1 << 40)
        words = list(argv)
        self.argvs.append(words[:])
        if words[0] == "/bin/sh":
            if not self.shell:
                raise ExecError("no such file", ref=self.ref)
            words[:1] = self.shell
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=cwd or self.folder,
                env={"PATH": self.path, "HOME": str(self.folder), "TMPDIR": str(self.folder), "LANG": "C", **env},
                stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE if self.caps.split else asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ExecError(f"cannot run {words[0]!r}: {error.strerror}", ref=self.ref) from error
        self.children.append(process)
        said = bytearray()
        sink = on_output if self.caps.binary else lambda name, data: said.extend(data)
        pumps = [asyncio.ensure_future(_pump(process.stdout, "stdout", sink))]
        if self.caps.split:
            pumps.append(asyncio.ensure_future(_pump(process.stderr, "stderr", sink)))
        feed = asyncio.ensure_future(_feed(process, stdin, self.stdin_cut))
        try:
            try:
                await asyncio.wait_for(_ended(process), self.caps.max_s)
            except asyncio.TimeoutError:
                raise ExecError("over the longest time of a command", ref=self.ref) from None
            # Without `kill` it is as a cloud's exec stream: it ends when the last holder of the pipes does.
            await asyncio.wait(pumps, timeout=0.1 if self.caps.kill else None)
        finally:
            for task in (feed, *pumps):
                task.cancel()
            if process.returncode is None and self.caps.kill:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        code = process.returncode
        if not self.caps.binary:
            on_output("stdout", as_text(bytes(said)))
        return RawResult(None if self.lose_code or code is None else code if code >= 0 else 128 - code)

    async def endpoint(self, port: int) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{port}")

    async def wait_exit(self) -> Exit:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def delete(self) -> None:
        await asyncio.to_thread(_kill_below, self.folder)
        for process in self.children:
            await _ended(process)
            transport: Any = process._transport  # type: ignore[attr-defined]
            transport.close()
        await asyncio.sleep(0)


class PuttingSandbox(ChildSandbox):
    """One whose backend writes small files."""

    async def put(self, path: str, data: bytes) -> None:
        assert len(data) <= 1 << 20
        await asyncio.to_thread(Path(path).write_bytes, data)


class Owner:
    """Notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @property
    def server(self) -> None:
        return None

    def serves(self, client: object) -> None:
        self.calls.append("serves")

    async def delete(self, *, confirm: bool) -> None:
        self.calls.append(f"delete confirm={confirm}")

    async def detach(self) -> None:
        self.calls.append("detach")

    async def release(self) -> None:
        self.calls.append("release")


class Provider:
    """The part of a provider that `RunningSandbox` asks."""

    def __init__(self, caps: ExecCapabilities | None, ports: Any) -> None:
        self._caps = Capabilities(exec=caps, ports=ports)

    def effective_capabilities(self) -> Capabilities:
        return self._caps


def as_text(data: bytes) -> bytes:
    """What a service that answers in text makes of output."""
    return data.decode("utf-8", "replace").replace("\0", "").replace("\r\n", "\n").strip().encode()


async def _ended(process: asyncio.subprocess.Process) -> None:
    # Process.wait() waits for the pipes too on some versions, and a process in the background may hold those.
    while process.returncode is None:  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0.005)


async def _pump(stream: asyncio.StreamReader | None, name: Any, on_output: OutputSink) -> None:
    assert stream is not None
    while data := await stream.read(1 << 16):
        on_output(name, data)


async def _feed(process: asyncio.subprocess.Process, stdin: Any, cut: int | None) -> None:
    if stdin is None or process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if isinstance(stdin, bytes):
            process.stdin.write(stdin[:cut])
            await process.stdin.drain()
        else:
            async for chunk in stdin:
                process.stdin.write(chunk)
                await process.stdin.drain()
    process.stdin.close()


def _kill_below(folder: Path) -> None:
    mark = f"HOME={folder}\0".encode()
    for _ in range(3):
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Makes a PATH with only what a small image has; ``without`` names what it lacks."""

    def make(*, busybox: bool = False, without: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> str:
        folder = tmp_path_factory.mktemp("bin")
        for name in (*TOOLS, "setsid", "python3", *more):
            if name in without:
                continue
            target = shutil.which("busybox" if busybox and name not in NOT_BUSYBOX else name)
            if name == "python3":
                target = sys.executable
            if target is not None:
                (folder / name).symlink_to(target)
        return str(folder)

    return make


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Callable[..., ChildSandbox]]:
    """Makes sandboxes: ``shell``, ``path``, ``puts``, and exec capabilities by keyword."""
    made: list[ChildSandbox] = []

    def make(
        *, shell: tuple[str, ...] = ("/bin/sh",), path: str | None = None, puts: bool = False, **caps: Any
    ) -> ChildSandbox:
        folder = tmp_path / f"child-{len(made)}"
        folder.mkdir()
        declared = ExecCapabilities(**{"stdin_stream": True, "user": False, **caps})
        kind = PuttingSandbox if puts else ChildSandbox
        made.append(kind(folder, declared, shell, path or os.environ["PATH"]))
        return made[-1]

    yield make
    for sandbox in made:
        await sandbox.delete()


@pytest.fixture
def running(child: Callable[..., ChildSandbox]) -> Callable[..., RunningSandbox]:
    """Makes running sandboxes; keywords as for ``child``, and ``spec``."""

    def make(*, spec: Mapping[str, Any] | None = None, ports: str = "any", **kw: Any) -> RunningSandbox:
        sandbox = child(**kw)
        provider: Any = Provider(sandbox.caps, ports)
        fields = {"image": "none", **(spec or {})}
        return RunningSandbox(sandbox, provider=provider, spec=SandboxSpec(**fields), owner=Owner())

    return make
