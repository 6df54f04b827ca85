"""The tiny environment inside fake sandboxes: in a thread of the fake cloud, or ``python -m`` this module.

It speaks the existing wire: /health, and reset, step and state over /ws. Flags script how it misbehaves.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from websockets.http11 import Request, Response
    from websockets.sync.server import Server, ServerConnection


@dataclass
class Script:
    """How the server behaves.

    Attributes:
        health: Status of /health.
        body: Body of /health; None for the usual JSON.
        late: Seconds before it listens.
        after_s: Seconds after which it ends; None for never.
        after_steps: Steps after which it ends; None for never.
        code: Exit code when it ends by itself.
        say: Printed before anything else.
        crash: It ends before it listens.
    """

    health: int = 200
    body: str | None = None
    late: float = 0.0
    after_s: float | None = None
    after_steps: int | None = None
    code: int = 0
    say: str = ""
    crash: bool = False

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Script:
        """From what follows the program's name."""
        parser = argparse.ArgumentParser("fake-env")
        for name, kind in (("health", int), ("body", str), ("late", float), ("after-s", float), ("after-steps", int)):
            parser.add_argument(f"--{name}", type=kind, default=getattr(cls, name.replace("-", "_")))
        parser.add_argument("--code", type=int, default=0)
        parser.add_argument("--say", default="")
        parser.add_argument("--crash", action="store_true")
        return cls(**vars(parser.parse_args(list(argv))))


class FakeEnv:
    """One running server.

    Args:
        script: How it behaves.
        env: Environment of the process it stands for: PORT, OPENENV_AUTH_TOKEN.
        write: Receives what it prints.
        exited: Called once with the exit code.
    """

    def __init__(
        self, script: Script, env: Mapping[str, str], write: Callable[[bytes], None], exited: Callable[[int], None]
    ) -> None:
        self.script, self.env, self.write = script, dict(env), write
        self._exited = exited
        self._ended = threading.Event()
        self._server: Server | None = None
        self._connections: set[ServerConnection] = set()
        self._lock = threading.Lock()
        self.resumed = threading.Event()
        self.resumed.set()
        threading.Thread(target=self._run, daemon=True, name="fake-env").start()

    def _run(self) -> None:
        from websockets.sync.server import serve

        script = self.script
        self.write(f"{script.say or 'fake-env starting'}\n".encode())
        if script.crash or self._ended.wait(script.late):
            return self.end(script.code)
        try:
            listener = socket.create_server(("127.0.0.1", int(self.env.get("PORT", "8000"))), backlog=128)
        except OSError as error:
            self.write(f"cannot listen: {error}\n".encode())
            return self.end(1)
        with self._lock:
            if self._ended.is_set():
                listener.close()
                return None
            self._server = serve(
                self._session,
                sock=listener,
                process_request=self._request,
                compression=None,
                max_size=64 << 20,
                logger=logging.getLogger("openenv.testing.fake"),
            )
        self.write(b"fake-env listening\n")
        if script.after_s is not None:
            threading.Thread(target=self._end_later, args=(script.after_s,), daemon=True).start()
        self._server.serve_forever()
        return None

    def _end_later(self, seconds: float) -> None:
        if not self._ended.wait(seconds):
            self.end(self.script.code)

    def end(self, code: int) -> None:
        """End it as a process ends: listening socket and connections vanish."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            server, connections = self._server, list(self._connections)
        self.resumed.set()
        if server is not None:
            server.socket.close()
        for connection in connections:  # cut, as by a kill: a polite close would take its time
            try:
                connection.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._exited(code)
        if server is not None:
            server.shutdown()

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        self.resumed.wait()
        path = request.path.split("?")[0]
        if path == "/health":
            status = HTTPStatus(self.script.health)
            body = self.script.body if self.script.body is not None else json.dumps({"status": "healthy"})
            return connection.respond(status, "" if status is HTTPStatus.NO_CONTENT else body)
        token = self.env.get("OPENENV_AUTH_TOKEN")
        given = (request.headers.get("Authorization", ""), request.headers.get("X-OpenEnv-Token", ""))
        if token and given[0] != f"Bearer {token}" and given[1] != token:
            return connection.respond(HTTPStatus.UNAUTHORIZED, "token missing or wrong\n")
        return None if path == "/ws" else connection.respond(HTTPStatus.NOT_FOUND, "not found\n")

    def _session(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        with self._lock:
            self._connections.add(connection)
        state: dict[str, Any] = {"episode_id": None, "step_count": 0}
        try:
            for text in connection:
                self.resumed.wait()
                reply = self._answer(json.loads(text), state)
                if reply is None:
                    return
                connection.send(json.dumps(reply))
                steps = self.script.after_steps
                if steps is not None and state["step_count"] >= steps:
                    self.end(self.script.code)
        except (ConnectionClosed, OSError):
            return
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _answer(self, message: dict[str, Any], state: dict[str, Any]) -> dict[str, Any] | None:
        kind, data = message.get("type"), message.get("data") or {}
        if kind == "reset":
            state.update(episode_id=data.get("episode_id") or os.urandom(4).hex(), step_count=0)
            return _observation({"message": "fake environment ready", "seed": data.get("seed")}, 0.0)
        if kind == "step":
            state["step_count"] += 1
            return _observation({"echo": data, "step": state["step_count"]}, 1.0)
        if kind == "state":
            return {"type": "state", "data": dict(state)}
        if kind == "close":
            return None
        return {"type": "error", "data": {"message": f"Unknown message type: {kind}", "code": "UNKNOWN_TYPE"}}


def _observation(fields: dict[str, Any], reward: float) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"metadata": {}, **fields}, "reward": reward, "done": False}}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until it ends by itself or is killed; returns the exit code."""
    done = threading.Event()
    codes: list[int] = []

    def write(data: bytes) -> None:
        os.write(1, data)

    def exited(code: int) -> None:
        codes.append(code)
        done.set()

    FakeEnv(Script.from_argv(sys.argv[1:] if argv is None else argv), os.environ, write, exited)
    while not done.wait(3600):
        time.sleep(0)
    return codes[0]


if __name__ == "__main__":
    sys.exit(main())
