"""A daemon's socket at another address: counts requests, and holds or cuts the replies of those that match."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = re.compile(rb"^([A-Z]+) (\S+) HTTP/1\.[01]\r\n", re.MULTILINE)


class DaemonProxy:
    """Forwards to a daemon's unix socket from a unix socket or a TCP port, in a thread of its own.

    Args:
        target: The daemon's socket.
        path: Where to listen; None for a TCP port on the loopback.
    """

    def __init__(self, target: str, path: Path | None = None) -> None:
        self._target, self._path = target, path
        self._loop = asyncio.new_event_loop()
        self._held: re.Pattern[bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[str] = []
        self.holding = threading.Event()
        self.url = ""

    def __enter__(self) -> DaemonProxy:
        self._release = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def hold(self, pattern: str) -> None:
        """Pass requests that match (``POST /v1.41/containers/create``) on, and keep their replies back."""
        self._held = re.compile(pattern.encode())
        self.holding.clear()
        self._loop.call_soon_threadsafe(self._release.clear)

    def release(self) -> None:
        """Let the replies go."""
        self._held = None
        self._loop.call_soon_threadsafe(self._release.set)

    def _run(self, started: threading.Event) -> None:
        async def listen() -> asyncio.Server:
            if self._path is not None:
                self.url = f"unix://{self._path}"
                return await asyncio.start_unix_server(self._accepted, str(self._path))
            server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
            self.url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return server

        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        server = self._loop.run_until_complete(listen())
        started.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(end())
        self._loop.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there, back = await asyncio.open_unix_connection(self._target)
        gate = asyncio.Event()
        gate.set()
        pumps = [
            asyncio.ensure_future(self._up(reader, back, gate)),
            asyncio.ensure_future(self._down(there, writer, gate)),
        ]
        try:
            # The client's end closes one direction only: the daemon may have more to say.
            await asyncio.wait([pumps[1]])
        except asyncio.CancelledError:
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, back):
                end.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        try:
            while data := await reader.read(65536):
                match = _HEAD.search(data)
                if match is not None:
                    line = match[1] + b" " + match[2]
                    self.requests.append(line.decode())
                    if self._held is not None and self._held.search(line):
                        gate.clear()
                back.write(data)
                await back.drain()
            back.write_eof()
        except (ConnectionError, OSError):
            return

    async def _down(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        try:
            while data := await there.read(65536):
                if not gate.is_set():
                    self.holding.set()
                    await self._release.wait()
                    gate.set()
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            return
