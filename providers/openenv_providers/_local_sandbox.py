"""One local sandbox, seen from a process that uses it."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

from openenv_providers import _local_exec
from openenv_providers import _local_frames as wire
from openenv_providers._local_link import Link, ask
from openenv_providers._local_relay import Relay
from openenv_providers._local_start import RECORD
from openenv_sandbox.errors import EndpointError, ExecError, ProviderError, SandboxGone
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.provider import Endpoint, Exit, OutputSink, RawResult, Sandbox, SandboxInfo

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from openenv_sandbox.provider import SandboxRef


class LocalSandbox(Sandbox):
    """Talks to the supervisor; holds one connection that says it is owned.

    Args:
        info: Its name and labels.
        folder: Where its socket and record lie.
        port: What the server's port is called, in the spec.
        own_network: Whether it has a loopback of its own, so that ports are reached through the supervisor.
        can_pause: Whether it is a process namespace of its own.
        remove: Deletes it.
    """

    def __init__(
        self,
        info: SandboxInfo,
        folder: Path,
        *,
        port: int,
        own_network: bool,
        can_pause: bool,
        remove: Callable[[SandboxRef], Awaitable[None]],
    ) -> None:
        self.info = info
        self.folder = folder
        self.spec_port, self.port = port, port
        self.own_network, self.can_pause = own_network, can_pause
        self._remove = remove
        self._hello = asyncio.Event()
        self._wrote = asyncio.Event()
        self._ended = asyncio.Event()
        self._exit = Exit(None)
        self._link: Link | None = None
        self._relays: set[Relay] = set()

    async def own(self, sock: socket.socket | None, kind: int = wire.ADOPT, payload: bytes = b"") -> bool:
        """Hold ``sock`` as an owner's connection; False when the sandbox ended before it said hello.

        Args:
            sock: Connected; None when nothing runs.
            kind: First frame.
            payload: Of the first frame.
        """
        if sock is None:
            self._over()
            await self._recall()
        else:
            self._link = Link(sock, self._event, self._over)
            self._link.send(kind, payload)
            await self._hello.wait()
        return not self._ended.is_set()

    def _event(self, kind: int, payload: bytes) -> None:
        if kind in (wire.HELLO, wire.PORT):
            self.port = wire.NUMBER.unpack_from(payload)[0]
            self._hello.set()
        elif kind == wire.OUTPUT:
            self._wrote.set()
        elif kind == wire.EXITED:
            self._exit = _exit(payload)

    def _over(self) -> None:
        for event in (self._ended, self._hello, self._wrote):
            event.set()
        for relay in self._relays:
            relay.close()
        self._relays.clear()
        if self._link is not None:
            self._link.close()

    def _gone(self) -> SandboxGone:
        code = "" if self._exit.code is None else f"; its server ended with code {self._exit.code}"
        return SandboxGone(f"the local sandbox {self.ref.id} no longer runs{code}", ref=self.ref)

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
        """See the contract."""
        if self._ended.is_set():
            raise self._gone()
        try:
            variables = [f"{name}={value}" for name, value in env.items()]
            payload = wire.fields(cwd or "", len(argv), *argv, *variables)
        except ValueError as error:
            raise ExecError(f"{argv[0]!r} cannot be run: {error}", ref=self.ref) from None
        try:
            kind, reply = await _local_exec.run(self.folder, payload, stdin, on_output)
        except (OSError, EOFError) as error:
            raise self._gone() from error
        number = wire.NUMBER.unpack(reply)[0]
        if kind == wire.EXITED:
            return RawResult(number)
        paused = " (the sandbox is paused)" if number == errno.EAGAIN else ""
        raise ExecError(
            f"{argv[0]!r} cannot be run: {os.strerror(number)}{paused}",
            ref=self.ref,
            hint="the program and the working directory must exist inside the sandbox",
        )

    async def endpoint(self, port: int) -> Endpoint:
        """See the contract. With the machine's network a port other than the server's is the machine's own."""
        if self._ended.is_set():
            raise self._gone()
        if not self.own_network:
            return Endpoint(f"http://127.0.0.1:{self.port if port == self.spec_port else port}")
        relay = Relay(self.folder, port)
        try:
            number = await relay.start()
        except OSError as error:
            raise EndpointError(f"no relay to port {port}: {error}", ref=self.ref) from error
        self._relays.add(relay)

        async def close() -> None:
            self._relays.discard(relay)
            relay.close()

        return Endpoint(f"http://127.0.0.1:{number}", failure=self._failure, close=close)

    def _failure(self) -> BaseException | None:
        return self._gone() if self._ended.is_set() else None

    async def wait_exit(self) -> Exit:
        """See the contract."""
        await self._ended.wait()
        await self._recall()
        return self._exit

    async def _recall(self) -> None:
        """What the supervisor wrote down, when nobody heard it."""
        if self._exit.code is None:
            self._exit = await daemon_call(read_record, self.folder)

    async def first_output(self) -> None:
        """See the contract."""
        await self._wrote.wait()

    async def pause(self) -> None:
        """See the contract."""
        await self._simple(wire.PAUSE, "pause")

    async def resume(self) -> None:
        """See the contract."""
        await self._simple(wire.RESUME, "resume")

    async def _simple(self, kind: int, what: str) -> bytes:
        if what in ("pause", "resume") and not self.can_pause:
            raise self._unsupported(what)
        try:
            answer, payload = await ask(self.folder, kind)
        except (OSError, EOFError) as error:
            raise self._gone() from error
        if answer != wire.DONE:
            raise ProviderError(f"the sandbox refused to {what}", ref=self.ref)
        return payload

    async def logs(self, *, tail: int | None = None) -> bytes:
        """See the contract. The last MiB is kept; of a server that ended the last 64 KiB."""
        try:
            text = await self._simple(wire.LOGS, "show logs")
        except SandboxGone:
            await self._recall()
            text = self._exit.tail
        if tail is None:
            return text
        return b"".join(text.splitlines(keepends=True)[-tail:]) if tail > 0 else b""

    async def delete(self) -> None:
        """See the contract."""
        await self._remove(self.ref)
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of it: it lives on without an owner."""
        if self._link is not None:
            self._link.send(wire.RELEASE)
            self._link.close()
            self._link = None


def read_record(folder: Path) -> Exit:
    """The exit that the supervisor of ``folder`` wrote down."""
    try:
        return _exit((folder / RECORD).read_bytes())
    except OSError:
        return Exit(None)


def _exit(data: bytes) -> Exit:
    if len(data) < wire.NUMBER.size:
        return Exit(None)
    return Exit(wire.NUMBER.unpack_from(data)[0], data[wire.NUMBER.size :])
