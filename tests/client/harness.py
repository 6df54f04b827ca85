"""Servers and proxies on a loop in a thread of their own, so that a test may block, await or stop its loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

Handler = Callable[["EnvServer", ServerConnection], Awaitable[None]]


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, make: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await make()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def stop(self) -> None:
        async def cancel() -> None:
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for _ in range(3):  # aborted transports close in the loop's next turns
                await asyncio.sleep(0)

        self.call(cancel)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class EnvServer:
    """Speaks the wire protocol; a step ``{"sleep": s, "echo": v}`` answers v after s seconds.

    Attributes:
        seen: Every message received, in order.
        open: Sessions open now.
        opened: Sessions opened so far.
        headers: Request headers of every upgrade.
    """

    def __init__(self, handler: Handler | None = None, host: str = "127.0.0.1", **options: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        self.open = self.opened = 0
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._handler = handler or EnvServer.play
        self._thread = LoopThread()
        self._idle = asyncio.Event()
        self._idle.set()
        options = {"compression": None, "max_size": 256 * 2**20, **options}

        async def start() -> Server:
            started: Server = await serve(self._serve, host, 0, **options)
            return started

        server: Server = self._thread.call(start)
        self.server = server
        self.port: int = next(iter(server.sockets)).getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def _serve(self, ws: ServerConnection) -> None:
        assert ws.request is not None
        self.headers.append({name.lower(): value for name, value in ws.request.headers.raw_items()})
        self.paths.append(ws.request.path)
        self.open += 1
        self.opened += 1
        self._idle.clear()
        try:
            await self._handler(self, ws)
        except ConnectionClosed:
            pass
        finally:
            self.open -= 1
            if not self.open:
                self._idle.set()

    async def play(self, ws: ServerConnection) -> None:
        count = 0
        async for raw in ws:
            message = json.loads(raw)
            self.seen.append(message)
            data: Any = message.get("data") or {}
            match message["type"]:
                case "reset":
                    count = 0
                    reply = observation({"metadata": {"kwargs": data}}, 0.0)
                case "step":
                    await asyncio.sleep(data.get("sleep", 0))
                    count += 1
                    fields = {key: value for key, value in data.items() if key not in ("sleep", "done", "size")}
                    if "size" in data:
                        fields["blob"] = "x" * data["size"]
                    reply = observation({"metadata": {}, **fields}, 1.0, data.get("done", False))
                case "state":
                    reply = {"type": "state", "data": {"episode_id": "e", "step_count": count}}
                case "close":
                    await ws.close()
                    return
                case other:
                    reply = {
                        "type": "error",
                        "data": {"message": f"Unknown message type: {other}", "code": "UNKNOWN_TYPE"},
                    }
            await ws.send(json.dumps(reply))

    def run(self, make: Callable[[], Awaitable[Any]]) -> Any:
        return self._thread.call(make)

    def wait_closed(self) -> None:
        """Return when no session is open any more."""
        self._thread.call(self._idle.wait)

    def __enter__(self) -> EnvServer:
        return self

    def __exit__(self, *exc: object) -> None:
        async def stop() -> None:
            self.server.close(close_connections=False)
            for ws in list(self.server.connections):
                ws.transport.abort()

        self._thread.call(stop)
        self._thread.stop()


def observation(fields: dict[str, Any], reward: Any, done: bool = False, **beside: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": fields, "reward": reward, "done": done, **beside}}
