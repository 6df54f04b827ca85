"""A real server in a process of its own, for tests of the wire."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0


@contextmanager
def serve(app: str, *, cwd: Path = ROOT / "envs", python: str = sys.executable, **env: str) -> Iterator[str]:
    """Serve ``app`` with uvicorn and yield ``127.0.0.1:port``.

    The socket listens before the process starts, so a client may connect at once. A server that dies says why.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [python, "-m", "uvicorn", app, "--fd", str(listener.fileno()), "--log-level", "warning"]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("OPENENV_")}
        process = subprocess.Popen(
            command, cwd=cwd, env={**kept, **env}, pass_fds=[listener.fileno()], stderr=subprocess.PIPE
        )
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert process.stderr is not None
    try:
        yield address
    except BaseException:
        process.kill()
        sys.stderr.write(process.stderr.read().decode(errors="replace"))
        raise
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()
