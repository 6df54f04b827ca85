"""A way to a port by a listener on the loopback here.

`open_tunnel` is for backends that have no ports: each accepted connection starts a relay in the sandbox, by python3,
socat or nc, whichever is there, whose stdin and stdout are the bytes. It works with no network in the sandbox at all,
since its loopback is its own. `forward` is for backends that forward single connections themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from openenv_sandbox.errors import CapabilityError, EndpointError, OpenEnvError
from openenv_sandbox.lifecycle import finish
from openenv_sandbox.provider import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.provider import Sandbox, SandboxRef

log = logging.getLogger("openenv.launch")

BUFFER_MAX = 256 * 1024 * 1024
"""Bytes waiting for a client that does not read, after which its connection is cut."""
REFUSED, NO_RELAY = 111, 127
_CHUNK = 1 << 16

# shutdown() before close(): a close while another thread reads sends no FIN, and the peer would wait for ever.
_PYTHON = """
import os, socket, sys, threading
def dial():
    for host in ("127.0.0.1", "::1"):
        try:
            return socket.create_connection((host, int(sys.argv[1])))
        except OSError:
            pass
    os._exit(111)
s = dial()
s.setsockopt(6, 1, 1)
def up():
    try:
        while 1:
            data = os.read(0, 65536)
            if not data:
                s.shutdown(1)
                return
            s.sendall(data)
    except OSError:
        try:
            s.shutdown(2)
        except OSError:
            pass
threading.Thread(target=up, daemon=True).start()
try:
    while 1:
        data = s.recv(65536)
        if not data:
            break
        while data:
            data = data[os.write(1, data):]
except OSError:
    pass
try:
    s.shutdown(2)
except OSError:
    pass
os._exit(0)
"""

# Everything the relay has to say is its exit code: on some backends stderr and stdout are one stream.
_RELAY = r"""
exec 2>/dev/null
for t in python3 /usr/local/bin/python3 /usr/bin/python3 /opt/venv/bin/python3 /app/.venv/bin/python3; do
  t=$(command -v "$t") && "$t" -I -S -c 'import socket, threading' && exec "$t" -I -S -c "$2" "$1"
done
t=$(command -v socat) && { exec "$t" -t 3600 - "TCP:127.0.0.1:$1,nodelay"; }
t=$(command -v nc) && { "$t" -h 2>&1 | grep -q -e '-N' && exec "$t" -N 127.0.0.1 "$1"; exec "$t" 127.0.0.1 "$1"; }
exit 127
"""


async def open_tunnel(sandbox: Sandbox, port: int, caps: ExecCapabilities) -> Endpoint:
    """An endpoint for ``port`` of ``sandbox``, carried by commands.

    Args:
        sandbox: Runs the relays.
        port: Where the server listens, on the sandbox's loopback.
        caps: What its commands can do; stdin and stdout must stream bytes.

    Raises:
        CapabilityError: They do not.
    """
    if not (caps.stdin and caps.stdin_stream and caps.live):
        raise CapabilityError(
            f"{sandbox.ref.provider} has no way to a port: its commands cannot stream bytes both ways",
            field="port",
            ref=sandbox.ref,
        )
    listener = _Listener(sandbox.ref, port, partial(_by_command, sandbox, port))
    return await listener.start()


class ByteStream(Protocol):
    """One connection to a port inside, as a backend's own port-forward gives it."""

    async def receive(self) -> bytes:
        """The next bytes from the server; empty when it has closed its side."""

    async def send(self, data: bytes) -> None:
        """Send to the server; returns when more may be sent."""

    async def send_eof(self) -> None:
        """Close our side; does nothing where the backend cannot."""

    async def aclose(self) -> None:
        """End the connection. May be called twice."""


async def forward(connect: Callable[[], Awaitable[ByteStream]], *, ref: SandboxRef, port: int) -> Endpoint:
    """An endpoint on the loopback here, for a backend that forwards single connections to a port (kubernetes).

    Args:
        connect: Makes one connection; called for each one that is accepted here. Its errors are the endpoint's
            ``failure()``: an `EndpointError` while the server does not listen yet, `SandboxGone` when it is over.
        ref: The sandbox, for messages.
        port: Likewise.
    """
    return await _Listener(ref, port, partial(_by_stream, connect)).start()


class _Listener:
    """Accepts connections on the loopback, has each carried, and knows why the last one could not be."""

    def __init__(self, ref: SandboxRef, port: int, carry: Callable[[_Link], Awaitable[None]]) -> None:
        self._ref, self._port, self._carry = ref, port, carry
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._closed = False

    async def start(self) -> Endpoint:
        # In two steps: cancelled while it begins to serve, the first alone would leave the socket open.
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, start_serving=False)
        try:
            await self._server.start_serving()
        except BaseException:
            self._server.close()
            raise
        url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return Endpoint(url, failure=lambda: self._failure, close=self.aclose)

    async def aclose(self) -> None:
        self._closed = True
        await finish(self._end(), timeout=5.0)

    async def _end(self) -> None:
        if self._server is not None:
            # asyncio makes the transport of an accepted connection in the next turn, and leaks its socket if the
            # server has been closed by then.
            for sock in self._server.sockets:
                asyncio.get_running_loop().remove_reader(sock.fileno())
            await asyncio.sleep(0)
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closed:  # accepted in the turn in which it was closed
            writer.transport.abort()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        link = _Link(reader, writer)
        try:
            await self._carry(link)
            if link.answered:
                self._failure = None
        except OpenEnvError as error:
            self._failure = error
        except asyncio.CancelledError:
            # Raised again, asyncio's own callback of the server would report it as an error.
            link.writer.transport.abort()
            return
        except Exception as error:
            log.warning("the tunnel to port %d of %s broke: %s", self._port, self._ref, type(error).__name__)
            self._failure = error
        await link.close()


async def _by_command(sandbox: Sandbox, port: int, link: _Link) -> None:
    relay = asyncio.ensure_future(
        sandbox.exec_raw(
            ["/bin/sh", "-c", _RELAY, "oe", str(port), _PYTHON],
            env={},
            cwd=None,
            user=None,
            stdin=link.sent(),
            on_output=link.received,
        )
    )
    lost = asyncio.ensure_future(link.lost.wait())
    try:
        await asyncio.wait({relay, lost}, return_when="FIRST_COMPLETED")
        if relay.done() and relay.result().exit_code == NO_RELAY:
            raise EndpointError(
                f"nothing in the sandbox can carry port {port}: no python3, socat or nc",
                ref=sandbox.ref, retryable=False, hint="install one of them in the image",
            )  # fmt: skip
    finally:
        lost.cancel()
        if not relay.done():
            relay.cancel()
            await asyncio.wait({relay}, timeout=5.0)


async def _by_stream(connect: Callable[[], Awaitable[ByteStream]], link: _Link) -> None:
    stream = await connect()

    async def up() -> None:
        async for data in link.sent():
            await stream.send(data)
        await stream.send_eof()

    async def down() -> None:
        while data := await stream.receive():
            link.received("stdout", data)
            await link.drained()

    sending, receiving = asyncio.ensure_future(up()), asyncio.ensure_future(down())
    lost = asyncio.ensure_future(link.lost.wait())
    try:
        await asyncio.wait({sending, receiving, lost}, return_when="FIRST_COMPLETED")
        if sending.done() and sending.exception() is None:
            await asyncio.wait({receiving, lost}, return_when="FIRST_COMPLETED")
        for task in (sending, receiving):
            if task.done():
                task.result()
    finally:
        for each in (sending, receiving, lost):
            each.cancel()
        await asyncio.wait({sending, receiving, lost}, timeout=5.0)
        await stream.aclose()


class _Link:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.answered = False
        self.lost = asyncio.Event()

    async def sent(self) -> AsyncIterator[bytes]:
        """What the client sends, until it shuts down its side."""
        try:
            while data := await self.reader.read(_CHUNK):
                yield data
        except ConnectionError:
            self.lost.set()

    def received(self, stream: str, data: bytes) -> None:
        """What the server sends."""
        if stream != "stdout" or self.lost.is_set():
            return
        self.answered = True
        transport = self.writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() > BUFFER_MAX:
            self.lost.set()
            return
        self.writer.write(data)

    async def drained(self) -> None:
        """Return when the client has taken most of what it was sent; a lost one is noticed elsewhere."""
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def close(self) -> None:
        """Send what is left, then end-of-file."""
        if not self.answered or self.lost.is_set():
            self.writer.transport.abort()
            return
        self.writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 30.0)
