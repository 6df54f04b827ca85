"""The face of a sandbox that users hold: commands, processes, files, ports, and its life.

Everything here is built on the few raw operations of `openenv_sandbox.provider.Sandbox`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from openenv_sandbox import files as _files
from openenv_sandbox import forking, notebook
from openenv_sandbox._exec_limits import UNSET, Unset, current, exec_limits
from openenv_sandbox.errors import CapabilityError, ExecError
from openenv_sandbox.process import Process, run_detached
from openenv_sandbox.process import spawn as _spawn
from openenv_sandbox.provider import ImageConfig
from openenv_sandbox.shell import MAX_OUTPUT, Command, ExecResult, ShellState, run, signal_marked, with_defaults, words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from os import PathLike
    from types import TracebackType

    from typing_extensions import Self

    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.errors import OpenEnvError
    from openenv_sandbox.exec_server import ExecServer
    from openenv_sandbox.provider import (
        Endpoint,
        Exit,
        OutputSink,
        Prepared,
        Sandbox,
        SandboxInfo,
        SandboxProvider,
        SandboxRef,
    )
    from openenv_sandbox.spec import SandboxSpec
    from openenv_sandbox.starting import CreatedServer

ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")

__all__ = ["UNSET", "ExecResult", "Owner", "Process", "RunningSandbox", "exec_limits"]

MAX_COMMANDS = 64
"""Commands of one sandbox at once; further ones wait their turn."""
_SHORT_S = 60.0  # commands of our own


class Owner(Protocol):
    """Who answers for the sandbox's end: the launcher."""

    @property
    def server(self) -> CreatedServer | ExecServer | None:
        """The server in it; None where nobody started one."""

    async def delete(self, *, confirm: bool) -> None:
        """Delete it; with ``confirm`` wait until the backend says that it is gone."""

    async def detach(self) -> None:
        """Give up ownership; the lifetime stays."""

    async def release(self) -> None:
        """Drop local resources only."""

    def serves(self, client: EnvClient[Any, Any, Any]) -> Callable[[], Awaitable[OpenEnvError | None]] | None:
        """A client uses the server, which answered; returns what tells why it is dead."""


class RunningSandbox(_files.FileMethods, forking.ForkMethods):
    """One sandbox in use.

    Args:
        sandbox: The provider's object.
        provider: The provider itself.
        spec: What was asked for.
        owner: Who deletes it.
        hidden: Secrets beside those of ``spec``: the server's token.
        token: What the server wants to see; None when it is not known here.
        image: Environment, user and folder of the image as far as the backend drops them; commands get them here.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        provider: SandboxProvider,
        spec: SandboxSpec,
        owner: Owner,
        hidden: Sequence[str] = (),
        token: str | None = None,
        image: ImageConfig | None = None,
    ) -> None:
        self._image = image or ImageConfig()
        self._sandbox, self._provider, self._spec, self._owner = sandbox, provider, spec, owner
        self._token = token
        self._hidden = {*hidden, *spec.plain_secrets().values(), *([token] if token else [])}
        self._shell = ShellState()
        self._turn: asyncio.Semaphore | None = None
        self._endpoints: list[Endpoint] = []

    def __repr__(self) -> str:
        return f"<RunningSandbox {self.ref}>"

    _repr_html_ = notebook.sandbox

    def __reduce__(self) -> Any:
        raise TypeError("a RunningSandbox belongs to one process and loop; pickle its ref and attach instead")

    @property
    def ref(self) -> SandboxRef:
        """Its name, to attach to it later."""
        return self._sandbox.ref

    @property
    def info(self) -> SandboxInfo:
        """What the backend granted."""
        return self._sandbox.info

    @property
    def spec(self) -> SandboxSpec:
        """What was asked for."""
        return self._spec

    # ------------------------------------------------------------------------------------------------ commands

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        stdin: bytes | str | AsyncIterator[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | Unset | None = UNSET,
        on_output: OutputSink | None = None,
        check: bool = False,
        max_output: int | None = None,
        redact: bool = True,
    ) -> ExecResult:
        """Run a command and wait for its end.

        Args:
            cmd: A string runs by ``/bin/sh -c``; a sequence is program and arguments.
            stdin: Input; None for an empty one.
            env: Additional variables; they never stand in a command line.
            cwd: Working directory; None for the sandbox's.
            user: ``name``, ``uid`` or ``uid:gid``; None for the sandbox's.
            timeout: Seconds until the whole process tree is ended; None waits for ever. Default: the spec's ``exec``.
            on_output: Called on the event loop with every chunk: ``("stdout" | "stderr", bytes)``.
            check: Raise `ExecError` when the exit code is not 0.
            max_output: Bytes kept of each stream, 10 MiB by default.
            redact: Replace the values of the sandbox's secrets by ``***`` in the output.

        Raises:
            ExecTimeout: The deadline passed; ``stdout`` and ``stderr`` hold what came before.
            ExecError: The command cannot be run, its exit code is not known, or ``check`` failed.
            CapabilityError: The sandbox has no way to do what was asked.
            SandboxGone: The sandbox ended.
        """
        limits = current.get()
        if isinstance(timeout, Unset):
            timeout = self._spec.timeouts.exec if isinstance(limits.timeout, Unset) else limits.timeout
        timeout = None if timeout == math.inf else timeout
        if timeout is not None and not timeout > 0:
            raise ExecError(f"timeout must be positive, not {timeout:g}", ref=self.ref)
        command = Command(
            words(cmd, self.ref),
            stdin=stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin,
            env=dict(env or {}),
            cwd=cwd,
            user=user,
            timeout=timeout,
        )
        kept = max_output if max_output is not None else limits.max_output or MAX_OUTPUT
        longest = self._exec_caps().max_s
        if longest is not None and (timeout is None or timeout > longest):
            result = await run_detached(self, command, kept, on_output)
        else:
            result = await self._run(command, kept, redact, on_output)
        if check and not result.ok:
            tail = result.stderr[-2000:].decode("utf-8", "replace").strip()
            raise ExecError(
                f"the command failed with exit code {result.exit_code}" + (f": {tail}" if tail else ""), ref=self.ref
            )
        return result

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        stdin: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a process that goes on when this call, the connection or the client ends.

        Args:
            cmd: As for `exec`.
            stdin: Keep its input open for `Process.write_stdin`.
            env: Additional variables.
            cwd: Working directory.
            user: User.

        Raises:
            ExecError: It cannot be started.
            CapabilityError: The sandbox has no shell.
        """
        return await _spawn(self, words(cmd, self.ref), stdin=stdin, env=env, cwd=cwd, user=user)

    def process(self, id: str) -> Process:
        """A handle on a process that `spawn` started earlier or elsewhere."""
        return Process(self, id)

    async def _command(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        max_output: int = MAX_OUTPUT,
        redact: bool = False,
        timeout: float | None = _SHORT_S,
        expendable: bool = False,
    ) -> ExecResult:
        command = Command(argv, stdin, dict(env or {}), cwd, user, timeout, expendable=expendable)
        return await self._run(command, max_output, redact, None)

    async def _run(self, command: Command, kept: int, redact: bool, sink: OutputSink | None) -> ExecResult:
        if self._turn is None:
            self._turn = asyncio.Semaphore(MAX_COMMANDS)
        command = with_defaults(command, self._image)
        async with self._turn:
            return await run(
                self._sandbox,
                self._exec_caps(),
                command,
                max_output=kept,
                secrets=self._secret_values() if redact else (),
                on_output=sink,
                state=self._shell,
            )

    def _longest_wait(self) -> float:
        return (self._exec_caps().max_s or math.inf) / 2

    async def _kill_marked(self, cookie: str, signal: str) -> bool:
        return await signal_marked(self._sandbox, cookie, signal)

    def _exec_caps(self) -> ExecCapabilities:
        caps = self._provider.effective_capabilities().exec
        if caps is None:
            raise CapabilityError(f"{self.ref.provider} cannot run commands", field="exec", ref=self.ref)
        return caps

    def _secret_values(self) -> list[bytes]:
        from openenv_sandbox.redact import SHORTEST

        return [v.encode() for v in self._hidden if len(v) >= SHORTEST]

    # --------------------------------------------------------------------------------------------------- ports

    async def endpoint(self, port: int | None = None) -> Endpoint:
        """The way to ``port``, by default the server's. `aclose` ends it unless its own ``aclose`` did.

        The headers of the way to the server carry its token; they are secret.

        Raises:
            CapabilityError: The port was not declared and the backend needs that.
            EndpointError: There is none now.
            SandboxGone: The sandbox ended.
        """
        endpoint = await self._way(port)
        if port in (None, self._spec.port):
            from openenv_sandbox.client.target import auth_headers

            endpoint.headers = auth_headers(endpoint.headers, self._token)
        return endpoint

    async def client(self, cls: type[ClientT] | None = None) -> ClientT:
        """A connected client of the server in this sandbox, which is waited for. Closing it leaves the sandbox.

        Args:
            cls: Its class; None for `GenericEnvClient`.

        Raises:
            ServerExited, ReadyTimeout, AuthError, EndpointError, ConnectError, SandboxGone: No session.
        """
        from openenv_sandbox import serving

        return await serving.connected(self, cls)

    async def _way(self, port: int | None = None) -> Endpoint:
        """The same without the token, for what sends that by itself."""
        number = self._spec.port if port is None else port
        caps = self._provider.effective_capabilities()
        if caps.ports == "tunnel":
            from openenv_sandbox.tunnel import open_tunnel

            endpoint = await open_tunnel(self._sandbox, number, self._exec_caps())
        else:
            endpoint = await self._sandbox.endpoint(number)
        self._endpoints.append(endpoint)
        return endpoint

    # ---------------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self, *, confirm: bool = False) -> None:
        """Delete the sandbox. May be called twice.

        Args:
            confirm: Wait until the backend says that it is gone.

        Raises:
            CleanupError: It may be left; the journal remembers it.
        """
        await self._close_endpoints()
        await self._owner.delete(confirm=confirm)

    async def detach(self) -> None:
        """Leave it running: it ends by its lifetime, or by whoever attaches to `ref`."""
        await self._close_endpoints()
        await self._owner.detach()

    async def aclose(self) -> None:
        """Drop local resources; the sandbox and its ownership stay. May be called twice."""
        await self._close_endpoints()
        await self._sandbox.aclose()
        await self._owner.release()

    async def _close_endpoints(self) -> None:
        while self._endpoints:
            await self._endpoints.pop().aclose()

    async def extend(self, lifetime_s: float) -> float:
        """Move its end to ``lifetime_s`` seconds from now, never nearer. Returns the new end as Unix time.

        Raises:
            CapabilityError: The lifetime is fixed.
        """
        return await self._sandbox.extend(lifetime_s)

    async def pause(self) -> None:
        """Freeze every process.

        Raises:
            CapabilityError: Not offered.
        """
        await self._sandbox.pause()

    async def resume(self) -> None:
        """Undo `pause`."""
        await self._sandbox.resume()

    async def snapshot(self) -> Prepared:
        """Keep the present state; ``launch("snapshot:ID")`` boots it.

        Raises:
            CapabilityError: Not offered.
        """
        return await self._sandbox.snapshot()

    async def logs(self, *, tail: int | None = None) -> bytes:
        """What the server wrote so far; with ``tail`` its last lines.

        Raises:
            CapabilityError: Not offered.
        """
        return await (self._owner.server or self._sandbox).logs(tail=tail)

    async def wait_exit(self) -> Exit:
        """Return when the server has ended."""
        return await (self._owner.server or self._sandbox).wait_exit()

    async def upload(self, local: str | PathLike[str], remote: str, **limits: Any) -> None:
        """Copy a file or a tree into the sandbox; see `openenv_sandbox.trees.upload` for the limits."""
        from openenv_sandbox import trees

        await trees.upload(self, local, remote, **limits)

    async def download(self, remote: str, local: str | PathLike[str], **limits: Any) -> None:
        """Copy a file or a tree out of the sandbox; see `openenv_sandbox.trees.download` for the limits."""
        from openenv_sandbox import trees

        await trees.download(self, remote, local, **limits)
