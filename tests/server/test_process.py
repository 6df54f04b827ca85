"""The server as a process of its own, started as images start it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.wire import frames

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@contextmanager
def uvicorn(*arguments: str, pass_fds: tuple[int, ...] = (), **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        pass_fds=pass_fds,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def connect(port: int, deadline: float = 30.0) -> socket.socket:
    end = time.monotonic() + deadline
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=deadline)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.02)
    request = (
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {frames.new_key()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    sock.sendall(request.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    if not head.startswith(b"HTTP/1.1 101 "):
        sock.close()
        raise AssertionError(head)
    return sock


def call(sock: socket.socket, message: object) -> dict[str, object]:
    sock.sendall(frames.encode_frame(frames.TEXT, json.dumps(message).encode(), mask=True))
    reader = frames.FrameReader(1 << 30, False)
    while True:
        data = sock.recv(1 << 16)
        assert data, "the server hung up"
        for opcode, payload in reader.feed(data):
            if opcode == frames.TEXT:
                answer: dict[str, object] = json.loads(payload)
                return answer


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def episode(port: int) -> None:
    with connect(port) as sock:
        assert call(sock, {"type": "reset"})["type"] == "observation"
        big = call(sock, {"type": "step", "data": {"what": "big:", "size": 20_000_000}})
        assert big["type"] == "observation"
        assert call(sock, {"type": "state"})["data"] == {"episode_id": None, "step_count": 1, "seed": None}


@pytest.mark.parametrize("name", ["app", "inline", "asynchronous"])
def test_by_port(name: str) -> None:
    port = free_port()
    with uvicorn(f"tests.server.apps:{name}", "--host", "127.0.0.1", "--port", str(port)) as process:
        episode(port)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in log, log
    assert "ERROR" not in log, log


def test_by_a_listening_descriptor() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        fd = listener.fileno()
        with uvicorn("tests.server.apps:app", "--fd", str(fd), pass_fds=(fd,)):
            episode(listener.getsockname()[1])


def test_a_process_ends_though_a_step_never_does() -> None:
    """The thread of a stuck step does not hold the process.

    Mutation: wait without a timeout in SessionManager.aclose
    """
    port = free_port()
    with uvicorn("tests.server.apps:app", "--port", str(port), "--timeout-graceful-shutdown", "1") as process:
        with connect(port) as stuck, connect(port) as other:
            message = {"type": "step", "data": {"what": "sleep:", "seconds": 3600}}
            stuck.sendall(frames.encode_frame(frames.TEXT, json.dumps(message).encode(), mask=True))
            assert call(other, {"type": "reset"})["type"] == "observation"
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def test_workers() -> None:
    port = free_port()
    with uvicorn("tests.server.apps:app", "--port", str(port), "--workers", "2") as process:
        episode(port)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_a_token_from_the_environment() -> None:
    port = free_port()
    with uvicorn("tests.server.apps:app", "--port", str(port), OPENENV_AUTH_TOKEN="canary-value") as process:
        with pytest.raises(AssertionError, match="401 Unauthorized"):
            connect(port)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert "canary-value" not in log
