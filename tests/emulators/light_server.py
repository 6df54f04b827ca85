"""The light environment server of the emulated sandboxes: standard library only, up in a few hundredths of a second.

``python -I -S light_server.py [PORT]`` answers /health, reset, step and state over HTTP and over /ws. What it says of
itself (uid, cwd, MARK, pid, how often it was started in this sandbox) lets a test see how it was started. Environment:
PORT, OPENENV_AUTH_TOKEN as the real server knows them; MARK is shown; LIGHT_DIE="after_steps=2,code=17" (or after_s)
lets it end by itself.
"""

from __future__ import annotations

import binascii
import json
import os
import socket
import sys
import threading
from hashlib import sha1

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost time at the start
    from typing import Any, BinaryIO

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STARTS = "/tmp/.light-starts"


def started() -> int:
    """Counts this start; returns how many there were in this sandbox."""
    try:
        with open(STARTS, "a+b") as file:
            file.write(b".")
            file.flush()
            return os.stat(STARTS).st_size
    except OSError:
        return -1


SELF = {"uid": os.getuid(), "gid": os.getgid(), "cwd": os.getcwd(), "mark": os.environ.get("MARK"), "pid": os.getpid()}
SELF["starts"] = started()
DIE = dict(part.split("=", 1) for part in os.environ.get("LIGHT_DIE", "").split(",") if part)
TOKEN = os.environ.get("OPENENV_AUTH_TOKEN")


def end() -> None:
    """Ends as LIGHT_DIE says."""
    sys.stderr.write("dying words\n")
    sys.stderr.flush()
    os._exit(int(DIE.get("code", "17")))


def observation(fields: dict[str, Any], reward: float) -> dict[str, Any]:
    return {"observation": {"metadata": {}, **fields, **SELF}, "reward": reward, "done": False}


class Session:
    """The environment of one connection."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"episode_id": None, "step_count": 0}

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.state.update(episode_id=data.get("episode_id") or os.urandom(4).hex(), step_count=0)
        return observation({"message": "light environment ready", "seed": data.get("seed")}, 0.0)

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        self.state["step_count"] += 1
        if "sleep" in data:  # a step that takes its time
            threading.Event().wait(float(data["sleep"]))
        return observation({"echo": data, "step": self.state["step_count"]}, 1.0)

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        kind, data = message.get("type"), message.get("data") or {}
        if kind in ("reset", "step"):
            return {"type": "observation", "data": getattr(self, kind)(data)}
        if kind == "state":
            return {"type": "state", "data": dict(self.state)}
        if kind == "close":
            return None
        return {"type": "error", "data": {"message": f"Unknown message type: {kind}", "code": "UNKNOWN_TYPE"}}


SHARED = Session()


def serve(conn: socket.socket) -> None:
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with conn, conn.makefile("rb") as file:
        try:
            while request(conn, file):
                pass
        except (OSError, ValueError):
            return


def request(conn: socket.socket, file: BinaryIO) -> bool:
    """Answers one request; whether another may follow."""
    line = file.readline().split()
    if len(line) < 2:
        return False
    headers = {}
    while (raw := file.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = raw.partition(b":")
        headers[name.strip().lower()] = value.strip()
    path = line[1].split(b"?")[0]
    close = headers.get(b"connection", b"").lower() == b"close"
    body = file.read(int(headers.get(b"content-length", b"0")))
    if path == b"/health":
        return reply(conn, 200, {"status": "healthy"}, close)
    if TOKEN and TOKEN.encode() not in (
        headers.get(b"authorization", b"").removeprefix(b"Bearer "),
        headers.get(b"x-openenv-token", b""),
    ):
        return reply(conn, 401, {"detail": "token missing or wrong"}, close)
    if path == b"/ws" and headers.get(b"upgrade", b"").lower() == b"websocket":
        digest = binascii.b2a_base64(sha1(headers[b"sec-websocket-key"] + GUID).digest()).strip()
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + digest + b"\r\n\r\n"
        )
        websocket(conn, file)
        return False
    data = json.loads(body) if body else {}
    if path == b"/reset":
        return reply(conn, 200, SHARED.reset(data), close)
    if path == b"/step":
        result = SHARED.step(data.get("action", data))
        return reply(conn, 200, result, close)
    if path == b"/state":
        return reply(conn, 200, SHARED.state, close)
    if path == b"/headers":  # what arrived, for tests of the way here
        return reply(conn, 200, {k.decode(): v.decode("latin-1") for k, v in headers.items()}, close)
    return reply(conn, 404, {"detail": "Not Found"}, close)


def reply(conn: socket.socket, status: int, body: object, close: bool) -> bool:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    conn.sendall((head + ("Connection: close\r\n" if close else "") + "\r\n").encode() + data)
    return not close


def frame(opcode: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return bytes((0x80 | opcode, size)) + data
    if size < 65536:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big") + data
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big") + data


def exactly(file: BinaryIO, size: int) -> bytes:
    data: bytes = file.read(size)
    if len(data) < size:
        raise ValueError("cut")
    return data


def unmask(data: bytes, key: bytes) -> bytes:
    keys = (key * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(len(data), "little")


def websocket(conn: socket.socket, file: BinaryIO) -> None:
    session, message = Session(), b""
    while True:
        first, second = exactly(file, 2)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(exactly(file, 2 if size == 126 else 8), "big")
        key = exactly(file, 4) if second & 0x80 else b"\0\0\0\0"
        payload = unmask(exactly(file, size), key)
        opcode = first & 0x0F
        if opcode == 8:
            conn.sendall(frame(8, payload[:2]))
            return
        if opcode == 9:
            conn.sendall(frame(10, payload))
        if opcode > 2:
            continue
        message += payload
        if not first & 0x80:
            continue
        answer = session.answer(json.loads(message))
        message = b""
        if answer is None:
            conn.sendall(frame(8, b"\x03\xe8"))
            return
        conn.sendall(frame(1, json.dumps(answer).encode()))
        if "after_steps" in DIE and session.state["step_count"] >= int(DIE["after_steps"]):
            end()


def main() -> None:
    port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PORT", "8000"))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    listener.listen(128)
    sys.stdout.write("light server listening\n")
    sys.stdout.flush()
    if "after_s" in DIE:
        timer = threading.Timer(float(DIE["after_s"]), end)
        timer.daemon = True
        timer.start()
    while True:
        conn, _ = listener.accept()
        threading.Thread(target=serve, args=(conn,), daemon=True).start()


if __name__ == "__main__":
    main()
