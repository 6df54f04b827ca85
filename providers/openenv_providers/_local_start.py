"""Making the folder of a local sandbox and starting its supervisor. Synchronous: runs in a worker thread."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_providers import _local_bwrap as bwrap
from openenv_providers import _local_frames as wire
from openenv_providers._local_link import address, unreachable
from openenv_providers._local_plan import Interpreter, own_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openenv_sandbox.folder import Folder
    from openenv_sandbox.spec import SandboxSpec

META = "sandbox.json"
RECORD = "record"
MESSAGES = "messages"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from openenv_providers._local_supervisor import main; "
    "del sys.path[0]; main(sys.argv[2:])"
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Ours until they ended: a child that nobody waits for stays in the process table.
_CHILDREN: dict[Path, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Job:
    """Everything about one sandbox to be started.

    Attributes:
        folder: Where its files go.
        source: The environment folder.
        interpreter: Which Python.
        argv: The server.
        takes_socket: Whether the server takes a listening socket (``{fd}``).
        spec: Port, variables, working directory, network.
        bwrap: bubblewrap; None for no isolation.
    """

    folder: Path
    source: Folder
    interpreter: Interpreter
    argv: Sequence[str]
    takes_socket: bool
    spec: SandboxSpec
    bwrap: str | None

    @property
    def network(self) -> bool:
        """Whether it shares the machine's network."""
        return self.spec.network.mode != "none"

    @property
    def meta(self) -> dict[str, Any]:
        """What is written down about it."""
        now = time.time()
        return {
            "labels": dict(self.spec.labels),
            "created_at": now,
            "expires_at": now + self.spec.timeouts.effective_lifetime,
            "image": self.source.path,
            "isolation": "process" if self.bwrap else "none",
            "own_network": not self.network,
            "port": self.spec.port,
        }


def start(job: Job) -> tuple[socket.socket, bytes]:
    """Start the supervisor; returns the owner's connection and the first frame to send on it.

    Raises:
        OSError: It cannot be started; nothing is left.
    """
    reap()
    job.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    job.folder.mkdir(mode=0o700)
    try:
        return _start(job)
    except BaseException:
        remove(job.folder)
        raise


def _start(job: Job) -> tuple[socket.socket, bytes]:
    home, tmp, shim = (job.folder / name for name in ("home", "tmp", "import"))
    for made in (home, tmp, shim):
        made.mkdir(mode=0o700)
    for name, target in job.source.packages.items():
        (shim / name).symlink_to(target)
    cwd = job.spec.workdir or job.source.path
    draft = job.folder / f"{META}.new"
    draft.write_text(json.dumps(job.meta), encoding="utf-8")
    draft.replace(job.folder / META)
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        stack.callback(theirs.close)
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(ours.close)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        with address(job.folder) as path:
            listener.bind(path)
        record = stack.enter_context(open(job.folder / RECORD, "wb"))
        messages = stack.enter_context(open(job.folder / MESSAGES, "wb"))
        fds = [theirs.fileno(), listener.fileno(), record.fileno()]
        mode, port, tcp = "port", job.spec.port, -1
        if job.takes_socket and not job.network:
            mode = "bind"
        elif job.takes_socket:
            # Made here and passed on: the port is known before the server is, and nobody can take it.
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
            mode, port, tcp = "tcp", server.getsockname()[1], server.fileno()
            fds.append(tcp)
        elif job.network:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
        argv = [job.interpreter.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parent.parent)]
        argv += [*(str(number) for number in (*fds[:3], tcp, int(bwrap.LINUX))), str(job.folder)]
        if job.bwrap is not None:
            visible = [*job.interpreter.visible, *own_packages(), job.source.path, str(shim)]
            argv = bwrap.command(job.bwrap, argv, read_only=visible, home=home, tmp=tmp, cwd="/", network=job.network)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env={"PATH": _SYSTEM_PATH},
            cwd="/",
            pass_fds=fds,
            start_new_session=True,
        )
        _CHILDREN[job.folder] = process
        undo.pop_all()
    env = _environment(job, home, tmp, shim)
    secrets = job.spec.plain_secrets()
    variables = [f"{name}={value}" for name, value in (*secrets.items(), *env.items())]
    return ours, wire.fields(mode, port, cwd, len(secrets), len(job.argv), *job.argv, *variables)


def _environment(job: Job, home: Path, tmp: Path, shim: Path) -> dict[str, str]:
    """What every process of the sandbox gets: nothing of the caller's."""
    isolated = job.bwrap is not None
    return {
        "PATH": f"{os.path.dirname(job.interpreter.executable)}:{_SYSTEM_PATH}",
        "HOME": bwrap.HOME if isolated else str(home),
        "TMPDIR": "/tmp" if isolated else str(tmp),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": os.pathsep.join((str(shim), *job.source.python_path)),
        **{name: value for name, value in job.spec.env.items() if name not in job.spec.secrets},
    }


def reap() -> None:
    """Wait for those of our children that have ended."""
    for folder, process in list(_CHILDREN.items()):
        if process.poll() is not None:
            _CHILDREN.pop(folder, None)


def wait(folder: Path, timeout: float = 10.0) -> int | None:
    """The exit code of the process that was started for ``folder``, waiting for it so many seconds at most."""
    process = _CHILDREN.get(folder)
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout)
        _CHILDREN.pop(folder, None)
    return process.returncode


def messages(folder: Path) -> str:
    """What bubblewrap and the supervisor complained about."""
    with contextlib.suppress(OSError):
        return (folder / MESSAGES).read_text(errors="replace").strip()[-2000:]
    return ""


def remove(folder: Path) -> None:
    """Remove the files of a sandbox that no longer runs."""
    from openenv_sandbox._paths import remove_tree

    remove_tree(folder)


def alive(folder: Path) -> bool:
    """Whether its supervisor runs."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            with address(folder) as path:
                probe.setblocking(False)
                probe.connect(path)
        except OSError as error:
            return not unreachable(error)
    return True


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What was written about a sandbox; None when there is nothing."""
    try:
        data = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def everything(root: Path) -> list[tuple[str, dict[str, Any]]]:
    """Key and description of every sandbox, running or not."""
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    return [(entry.name, meta) for entry in entries if (meta := read_meta(entry)) is not None]


def sweep(root: Path) -> None:
    """Remove the files of sandboxes that ended by themselves and whose time is over."""
    for key, meta in everything(root):
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            if float(meta["expires_at"]) < time.time() and not alive(root / key):
                remove(root / key)
