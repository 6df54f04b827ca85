"""Servers in processes of their own, on a socket that listens before they start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Iterator

HANG = 120.0
"""Seconds after which a server that does not start fails the test."""

PACKAGES = Path(__file__).parent / "packages"
SERVE = """
import socket, sys, uvicorn
listener = socket.socket(fileno=int(sys.argv[1]))
uvicorn.Server(uvicorn.Config(sys.argv[2], log_level="warning")).run([listener])
"""


@contextmanager
def served(app: str, folder: Path, python: str = sys.executable, **environment: str) -> Iterator[str]:
    """Serve ``module:attribute`` found from ``folder``; gives the URL once the server answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        argv = [python, "-W", "error::DeprecationWarning:openenv", "-c", SERVE, str(listener.fileno()), app]
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **environment},
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        with urlopen(f"{url}/health", timeout=HANG) as answer:  # the socket listens already: this waits, not retries
            answer.read()
        yield url
    except BaseException:
        process.terminate()
        _, errors = process.communicate(timeout=30)
        sys.stderr.write(errors)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
