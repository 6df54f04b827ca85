"""A daemon's socket at another address: counts requests, and makes those that match fail, hang or lose their reply."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.testing.faults import FakeApiError, Faults

if TYPE_CHECKING:
    from pathlib import Path

    from openenv_sandbox.testing.faults import Rule

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.MULTILINE | re.IGNORECASE)
_OPAQUE = re.compile(rb"^(?:upgrade|transfer-encoding):", re.MULTILINE | re.IGNORECASE)
_HEAD_LIMIT = 1 << 20
_OPS = {
    "create": re.compile(r"POST \S*/containers/create"),
    "find": re.compile(r"GET \S*/containers/json.*oe-key"),
    "list": re.compile(r"GET \S*/containers/json(?!.*oe-key)"),
    "delete": re.compile(r"DELETE \S*/containers/"),
    "info": re.compile(r"GET \S*/containers/[^/\s]+/json"),
    "start": re.compile(r"POST \S*/containers/[^/\s]+/start"),
    "exec": re.compile(r"POST \S*/containers/[^/\s]+/exec"),
}


class DaemonProxy:
    """Forwards to a daemon's unix socket from a unix socket or a TCP port, in a thread of its own.

    ``faults`` takes rules for create, find, list, delete, info, start and exec: ``when``, ``status``, ``retry_after``,
    ``hang``, ``delay``, ``half``, ``times``, ``skip``. What a rule held back reaches the daemon when it is released,
    even if whoever asked is dead by then: so a create appears late.

    Args:
        target: The daemon's socket.
        path: Where to listen; None for a TCP port on the loopback.
    """

    def __init__(self, target: str, path: Path | None = None) -> None:
        self._target, self._path = target, path
        self._loop = asyncio.new_event_loop()
        self.faults = Faults()
        self.requests: list[str] = []
        self.url = ""

    def __enter__(self) -> DaemonProxy:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, started: threading.Event) -> None:
        listener = socket.socket(socket.AF_INET if self._path is None else socket.AF_UNIX)
        listener.setblocking(False)
        if self._path is not None:
            listener.bind(str(self._path))
            self.url = f"unix://{self._path}"
        else:
            listener.bind(("127.0.0.1", 0))
            self.url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        listener.listen(128)
        connections: set[asyncio.Task[None]] = set()

        def accept() -> None:
            here, _ = listener.accept()
            there = socket.socket(socket.AF_UNIX)
            there.connect(self._target)
            task = self._loop.create_task(self._accepted(here, there))
            # A task that is cancelled before its first turn never comes to its own clean-up.
            task.add_done_callback(partial(_close, here, there))
            connections.add(task)

        async def end() -> None:
            self._loop.remove_reader(listener)
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            for _ in range(5):  # an aborted transport is closed in one of the turns that follow
                await asyncio.sleep(0.01)

        self._loop.add_reader(listener, accept)
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(end())
        listener.close()
        self._loop.close()

    async def _accepted(self, here: socket.socket, there: socket.socket) -> None:
        async with contextlib.AsyncExitStack() as stack:
            reader, writer = await asyncio.open_connection(sock=here, limit=_HEAD_LIMIT)
            stack.callback(writer.transport.abort)
            answers, back = await asyncio.open_connection(sock=there)
            stack.callback(back.transport.abort)
            connection = _Connection(self, reader, writer, answers, back)
            pumps = [asyncio.ensure_future(connection.up()), asyncio.ensure_future(connection.down())]
            try:
                # The client's end closes one direction only: the daemon may have more to say.
                await asyncio.wait([pumps[1]])
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    def taken(self, line: str) -> list[Rule]:
        """The rules that this request runs into."""
        self.requests.append(line)
        plain = unquote(line)
        return [rule for op, pattern in _OPS.items() if pattern.match(plain) for rule in self.faults.take(op, {})]


class _Connection:
    """One client of the proxy; requests come one after the other, until one of them makes it a plain stream."""

    def __init__(
        self,
        proxy: DaemonProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> None:
        self._proxy, self._reader, self._writer, self._there, self._back = proxy, reader, writer, there, back
        # Drained means sent: the connection is aborted when the last reply is.
        writer.transport.set_write_buffer_limits(high=0)
        self._after: list[Rule] = []
        self._held = False

    async def up(self) -> None:
        """Requests, to the daemon."""
        try:
            while await self._request():
                pass
            if not self._held:  # a daemon may give up what nobody waits for, and this is to appear late
                self._back.write_eof()
        except (OSError, asyncio.IncompleteReadError):
            return

    async def _request(self) -> bool:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            self._back.write(error.partial)
            return False
        length = _LENGTH.search(head)
        body = await self._reader.readexactly(int(length[1])) if length is not None else b""
        rules = self._proxy.taken(head.partition(b" HTTP/1.")[0].decode())
        self._held = bool(rules)
        self._after = [rule for rule in rules if rule.when == "after" or rule.half is not None]
        for rule in rules:
            if rule not in self._after and not await self._passes(rule):
                self._back.transport.abort()
                return True
        self._back.write(head + body)
        await self._back.drain()
        if _OPAQUE.search(head) is None:
            return True
        while data := await self._reader.read(65536):
            self._back.write(data)
            await self._back.drain()
        return False

    async def down(self) -> None:
        """Replies, to the client."""
        try:
            while data := await self._there.read(65536):
                after, self._after = self._after, []
                for rule in after:
                    if not await self._passes(rule):
                        return
                    if rule.half is not None:
                        self._writer.write(data[: -len(data.partition(b"\r\n\r\n")[2]) // 2])
                        await self._writer.drain()
                        return
                self._writer.write(data)
                await self._writer.drain()
        except OSError:
            return

    async def _passes(self, rule: Rule) -> bool:
        """Do what ``rule`` says; False when it ended the request, with an answer or without."""
        try:
            await daemon_call(rule.apply)
        except FakeApiError as error:
            if error.status:
                content = json.dumps({"message": f"injected: {error.message}"}).encode()
                head = f"HTTP/1.1 {error.status} Injected\r\nContent-Type: application/json\r\nConnection: close\r\n"
                if error.retry_after is not None:
                    head += f"Retry-After: {error.retry_after:g}\r\n"
                self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                await self._writer.drain()
            return False
        return True


def _close(here: socket.socket, there: socket.socket, _: object) -> None:
    here.close()
    there.close()
