"""A way to a port where the backend has none: one command inside per connection, its stdin and stdout the bytes.

`open_tunnel` listens on the loopback here. Each accepted connection starts a relay in the sandbox, by python3, socat or
nc, whichever is there. Works with no network in the sandbox at all, since its loopback is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from openenv_sandbox.errors import CapabilityError, EndpointError, OpenEnvError
from openenv_sandbox.lifecycle import finish
from openenv_sandbox.provider import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openenv_sandbox.capabilities import ExecCapabilities
    from openenv_sandbox.provider import Sandbox

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
    tunnel = _Tunnel(sandbox, port)
    await tunnel.start()
    return Endpoint(tunnel.url, failure=tunnel.failure, close=tunnel.aclose)


class _Tunnel:
    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox, self._port = sandbox, port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def failure(self) -> BaseException | None:
        return self._failure

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await finish(self._end(), timeout=5.0)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        link = _Link(reader, writer)
        try:
            code = await self._relay(link)
            if code == NO_RELAY:
                self._failure = EndpointError(
                    f"nothing in the sandbox can carry port {self._port}: no python3, socat or nc",
                    ref=self._sandbox.ref, retryable=False, hint="install one of them in the image",
                )  # fmt: skip
            elif link.answered:
                self._failure = None
        except OpenEnvError as error:
            self._failure = error
        except asyncio.CancelledError:
            # Raised again, asyncio's own callback of the server would report it as an error.
            link.writer.transport.abort()
            return
        except Exception as error:
            log.warning("the tunnel to port %d of %s broke: %s", self._port, self._sandbox.ref, type(error).__name__)
            self._failure = error
        await link.close()

    async def _relay(self, link: _Link) -> int | None:
        relay = asyncio.ensure_future(
            self._sandbox.exec_raw(
                ["/bin/sh", "-c", _RELAY, "oe", str(self._port), _PYTHON],
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
            if not relay.done():
                return None
            return relay.result().exit_code
        finally:
            lost.cancel()
            if not relay.done():
                relay.cancel()
                await asyncio.wait({relay}, timeout=5.0)


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

    async def close(self) -> None:
        """Send what is left, then end-of-file."""
        if not self.answered or self.lost.is_set():
            self.writer.transport.abort()
            return
        self.writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 30.0)
