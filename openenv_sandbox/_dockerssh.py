"""Daemons behind ``ssh://``: their socket, forwarded by the ssh command for as long as this process lives. Blocking.

What ssh itself knows (``~/.ssh/config``, agents, known hosts) applies; nothing is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import glob
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from openenv_sandbox.errors import ConfigError, ProviderUnavailable

if TYPE_CHECKING:
    from openenv_sandbox._dockerhost import DockerHost

CONNECT_S = 20.0
SOCKET = "/var/run/docker.sock"
# Ends with our end of its input, also by kill -9: nothing of it outlives this process, here or there.
_REMOTE = "echo forwarded; exec cat >/dev/null"
_PREFIX = "openenv-ssh-"
_lock = threading.Lock()
_open: dict[tuple[int, str], _Forward] = {}


def reached(host: DockerHost) -> DockerHost:
    """Where a connection to the daemon is opened: ``host`` itself, or for ssh the forwarded socket.

    Raises:
        ConfigError: The address is malformed, or there is no ssh command.
        ProviderUnavailable: The machine cannot be reached, or does not let us in; in ssh's own words.
    """
    if not host.url.startswith("ssh://"):
        return host
    key = (os.getpid(), host.url)
    with _lock:
        found = _open.get(key)
        if found is None or found.process.poll() is not None:
            if found is not None:
                found.close()
            found = _open[key] = _Forward(host)
    return replace(host, url=f"unix://{found.path}", forwarded=True)


class _Forward:
    """One ssh command, and the socket that leads through it."""

    def __init__(self, host: DockerHost) -> None:
        parts = urlsplit(host.url)
        program = shutil.which("ssh")
        if not parts.hostname or parts.hostname.startswith("-") or (parts.username or "").startswith("-"):
            raise ConfigError(f"{host.source} names no machine: {host.url!r}", hint="ssh://me@host:22")
        if program is None:
            raise ConfigError(f"{host.source} is ssh://, and no ssh command is on PATH", hint="install openssh-client")
        _sweep()
        self.folder = tempfile.mkdtemp(prefix=_PREFIX)
        self.path = f"{self.folder}/docker.sock"
        argv = [program, "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none"]
        argv += ["-o", f"ConnectTimeout={CONNECT_S / 2:.0f}", "-o", "ServerAliveInterval=30"]
        argv += ["-L", f"{self.path}:{unquote(parts.path) if len(parts.path) > 1 else SOCKET}"]
        argv += ["-p", str(parts.port)] if parts.port else []
        argv += ["-l", parts.username] if parts.username else []
        with tempfile.TemporaryFile(dir=self.folder) as said:
            self.process = subprocess.Popen(
                [*argv, "--", parts.hostname, _REMOTE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
            if not self._ready():
                self.close()
                said.seek(0)
                words = re.sub(r"\s+", " ", said.read().decode("utf-8", "replace")).strip()[-300:]
                raise ProviderUnavailable(
                    f"the docker daemon's machine cannot be reached by ssh ({host.source}): {words or 'no answer'}",
                    provider="docker",
                    retryable=True,
                    hint=f"`ssh {parts.hostname}` must work without a question: known hosts, ssh-agent, ~/.ssh/config",
                )
        atexit.register(self.close)

    def _ready(self) -> bool:
        assert self.process.stdout is not None
        end, line = time.monotonic() + CONNECT_S, b""
        while b"forwarded" not in line and (left := end - time.monotonic()) > 0:
            if not select.select([self.process.stdout], [], [], left)[0]:
                return False
            data = os.read(self.process.stdout.fileno(), 4096)
            if not data:
                return False
            line += data
        return b"forwarded" in line

    def close(self) -> None:
        """End it. May be called twice."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            if end is not None:
                end.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)


def _sweep() -> None:
    """Sockets of ours whose process was killed."""
    for folder in glob.glob(f"{tempfile.gettempdir()}/{_PREFIX}*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if (
                os.stat(folder).st_uid == os.getuid()
                and probe.connect_ex(f"{folder}/docker.sock") == errno.ECONNREFUSED
            ):
                shutil.rmtree(folder)


def _forget() -> None:
    """In a forked child, which must hold no end of the parent's."""
    for forward in list(_open.values()):
        for end in (forward.process.stdin, forward.process.stdout):
            if end is not None:
                end.close()
        atexit.unregister(forward.close)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
