"""Servers in processes of their own, on a socket that listens before they start."""

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

PACKAGES = Path(__file__).parent / "packages"
SERVE = """
import socket, sys, uvicorn
listener = socket.socket(fileno=int(sys.argv[1]))
uvicorn.Server(uvicorn.Config(sys.argv[2], log_level="warning")).run([listener])
"""


@contextmanager
def served(app: str, folder: Path, **environment: str) -> Iterator[str]:
    """Serve ``module:attribute`` found from ``folder``; gives the URL, which accepts at once."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        argv = [sys.executable, "-W", "error::DeprecationWarning:openenv", "-c", SERVE, str(listener.fileno()), app]
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **environment},
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
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
