"""A backend whose sandboxes are plain child processes in a folder: what the contract suite is itself tested with.

It isolates nothing. Its capabilities can be narrowed, so that one machine shows how core copes with poorer backends,
and its shell can be replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
from openenv_sandbox.errors import CapabilityError, EndpointError, ExecError, FileError, SandboxGone
from openenv_sandbox.options import ProviderOptions
from openenv_sandbox.provider import (
    Endpoint,
    Exit,
    OutputSink,
    Prepared,
    RawResult,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxRef,
    Verified,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.spec import SandboxSpec

TAIL = 4096


@dataclass
class _Child:
    """One sandbox: its folder, its server, its processes."""

    ref: SandboxRef
    folder: str
    labels: Mapping[str, str]
    port: int
    created_at: float
    env: Mapping[str, str]
    server: asyncio.subprocess.Process | None = None
    tail: bytes = b""
    first: asyncio.Event = field(default_factory=asyncio.Event)
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    commands: set[asyncio.subprocess.Process] = field(default_factory=set)
    gone: bool = False


class ChildSandbox(Sandbox):
    """A folder and its processes.

    Args:
        child: What the provider keeps of it.
        caps: What `exec_raw` shall be able to do.
        shell: Runs instead of ``/bin/sh``; an empty one makes the sandbox shell-less.
    """

    def __init__(self, child: _Child, caps: ExecCapabilities, shell: Sequence[str] = ("/bin/sh",)) -> None:
        self._child, self.caps, self.shell = child, caps, tuple(shell)
        self.info = SandboxInfo(child.ref, "running", dict(child.labels), child.created_at, isolation="none")

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
        """Run a child process."""
        self._alive()
        words = list(argv)
        if words[0] == "/bin/sh":
            if not self.shell:
                raise ExecError("no such program: /bin/sh", ref=self.ref)
            words[:1] = self.shell
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=cwd or self._child.folder,
                env={**self._child.env, **env},
                stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE if self.caps.split else asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ExecError(f"cannot run {words[0]!r}: {error.strerror}", ref=self.ref) from error
        self._child.commands.add(process)
        pumps = [asyncio.ensure_future(self._pump(process.stdout, "stdout", on_output))]
        if process.stderr is not None:
            pumps.append(asyncio.ensure_future(self._pump(process.stderr, "stderr", on_output)))
        feed = asyncio.ensure_future(_feed(process, stdin))
        try:
            await _exited(process)
            # A process left in the background may hold the pipes for as long as it lives.
            await asyncio.wait(pumps, timeout=0.1 if self.caps.kill else None)
        finally:
            feed.cancel()
            for pump in pumps:
                pump.cancel()
            if process.returncode is None and self.caps.kill:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            self._child.commands.discard(process)
            _close_pipes(process)
        self._alive()
        code = process.returncode
        return RawResult(None if code is None else code if code >= 0 else 128 - code)

    async def _pump(self, stream: asyncio.StreamReader | None, name: Any, on_output: OutputSink) -> None:
        assert stream is not None
        while data := await stream.read(1 << 16):
            on_output(name, data)

    async def put(self, path: str, data: bytes) -> None:
        """Write a small file."""
        self._alive()
        try:
            await asyncio.to_thread(_write, path, data)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}", ref=self.ref) from error

    async def endpoint(self, port: int) -> Endpoint:
        """The server's own port: sandboxes share the host's network."""
        self._alive()
        if port != self._child.port:
            raise CapabilityError(f"port {port} was not declared at create", field="ports", ref=self.ref)
        if self._child.exited.is_set():
            raise EndpointError("the server has ended", ref=self.ref, retryable=False)
        return Endpoint(f"http://127.0.0.1:{port}")

    async def wait_exit(self) -> Exit:
        """The server's end."""
        await self._child.exited.wait()
        code = self._child.server.returncode if self._child.server else None
        return Exit(None if code is None else code if code >= 0 else 128 - code, self._child.tail)

    async def first_output(self) -> None:
        """The server's first output."""
        await self._child.first.wait()

    async def logs(self, *, tail: int | None = None) -> bytes:
        """The end of the server's output."""
        self._alive()
        lines = self._child.tail.splitlines(keepends=True)
        return b"".join(lines if tail is None else lines[-tail:])

    async def delete(self) -> None:
        """End the processes, remove the folder."""
        await _remove(self._child)

    def _alive(self) -> None:
        if self._child.gone:
            raise SandboxGone("the sandbox was deleted", ref=self.ref)


class ChildOptions(ProviderOptions):
    """Options of `ChildProvider`."""

    path: str | None = None
    shell: tuple[str, ...] = ("/bin/sh",)


class ChildProvider(SandboxProvider):
    """Sandboxes as child processes of this one; they end with it or with ``delete``."""

    name: ClassVar[str] = "child"
    title: ClassVar[str] = "Child processes (tests)"
    Options = ChildOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref"}),
        start="command",
        runs_image=False,
        exec=ExecCapabilities(stdin_stream=True, user=False),
        isolation="none",
        dedupes_key=False,
        create_settle_s=1.0,
        user=False,
    )
    verified: ClassVar[Verified] = Verified("engine", note="real processes, no isolation")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._children: dict[str, _Child] = {}
        self._serial = 0

    def scope(self) -> str:
        """This process."""
        return f"pid-{os.getpid()}"

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Make a folder and start the command in it."""
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="openenv-child-")
        self._serial += 1
        env = {
            "PATH": self.options.path or os.environ.get("PATH", os.defpath),
            "HOME": folder,
            "TMPDIR": folder,
            "LANG": "C",
            **(dict(prepared.image.env) if prepared.image else {}),
            **spec.env,
            **spec.plain_secrets(),
        }
        ref = SandboxRef(self.name, self.scope(), f"child-{self._serial}", key)
        child = _Child(ref, folder, dict(spec.labels), spec.port, time.time(), env)
        self._children[ref.id] = child
        try:
            if spec.command is not None:
                await _serve(child, spec)
        except BaseException:
            await _remove(child)
            raise
        return self._sandbox(child)

    def _sandbox(self, child: _Child) -> Sandbox:
        caps = self.effective_capabilities().exec
        assert caps is not None
        return ChildSandbox(child, caps, self.options.shell)

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """By key."""
        return [child.ref for child in self._children.values() if child.ref.key == key and not child.gone]

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Another handle on the same child."""
        child = self._children.get(ref.id)
        if child is None or child.gone or ref.scope != self.scope():
            raise SandboxGone("no such sandbox", ref=ref)
        return self._sandbox(child)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Those that live."""
        for child in [c for c in self._children.values() if not c.gone]:
            if labels.items() <= child.labels.items():
                yield replace(self._sandbox(child).info, status="stopped" if child.exited.is_set() else "running")

    async def delete(self, ref: SandboxRef) -> None:
        """End and forget it."""
        child = self._children.get(ref.id)
        if child is not None and ref.scope == self.scope():
            await _remove(child)

    async def aclose(self) -> None:
        """Nothing is held."""


async def _serve(child: _Child, spec: SandboxSpec) -> None:
    assert spec.command is not None
    child.server = await asyncio.create_subprocess_exec(
        *spec.command,
        cwd=child.folder,
        env=dict(child.env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    task = asyncio.ensure_future(_watch(child, child.server))
    child.tasks.add(task)


async def _watch(child: _Child, server: asyncio.subprocess.Process) -> None:
    assert server.stdout is not None
    while data := await server.stdout.read(1 << 16):
        child.tail = (child.tail + data)[-TAIL:]
        child.first.set()
    await server.wait()
    child.first.set()
    child.exited.set()


async def _remove(child: _Child) -> None:
    child.gone = True
    for process in (child.server, *child.commands):
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if child.server is not None:
        await child.server.wait()
    if child.tasks:
        await asyncio.wait(child.tasks)
    child.exited.set()
    await asyncio.to_thread(shutil.rmtree, child.folder, True)


async def _feed(process: asyncio.subprocess.Process, stdin: bytes | AsyncIterator[bytes] | None) -> None:
    if stdin is None or process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if isinstance(stdin, bytes):
            process.stdin.write(stdin)
            await process.stdin.drain()
        else:
            async for chunk in stdin:
                process.stdin.write(chunk)
                await process.stdin.drain()
    process.stdin.close()


async def _exited(process: asyncio.subprocess.Process) -> None:
    # Process.wait() also waits for the pipes on some versions, and those may be held by a background process.
    while process.returncode is None:
        waiter = asyncio.ensure_future(process.wait())
        await asyncio.wait({waiter}, timeout=0.05)
        waiter.cancel()


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    transport: Any = getattr(process, "_transport", None)
    if transport is None:
        return
    if process.returncode is not None:
        transport.close()
        return
    for number in (0, 1, 2):  # the process lives on: closing the transport itself would kill it
        pipe = transport.get_pipe_transport(number)
        if pipe is not None:
            pipe.close()


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
