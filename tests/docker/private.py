"""Debian's docker-registry on the loopback, which wants a login that htpasswd made."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "me", "r3gistry-pass-of-me"
MISSING = [name for name in ("docker-registry", "htpasswd") if shutil.which(name) is None]
_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


@contextlib.contextmanager
def private_registry(folder: Path) -> Iterator[str]:
    """Run one; yields ``127.0.0.1:PORT``."""
    made = subprocess.run(["htpasswd", "-niB", USER], input=PASSWORD, capture_output=True, text=True, check=True)
    (folder / "htpasswd").write_text(made.stdout)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder, port=port))
    argv = ["docker-registry", "serve", str(folder / "config.yml")]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(300):
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", "/v2/")
                assert connection.getresponse().status == 401
                connection.close()
                break
            threading.Event().wait(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()
