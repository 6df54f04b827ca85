"""``openenv serve``: an environment's server in the foreground, without a sandbox."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.folder import Folder


@click.command("serve", short_help="Run an environment's server here.")
@click.argument("path", default=".", type=click.Path(path_type=Path))
@click.option("-p", "--port", type=click.IntRange(0, 65535), help="Default: that of openenv.yaml; 0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 lets other machines in.")
@click.option("--reload", is_flag=True, help="Restart when a file of the folder changes.")
@click.option("--workers", type=click.IntRange(1), help="Server processes; sessions are not shared between them.")
@click.option("--web", is_flag=True, help="Serve a page at /web as well, to play with the environment in a browser.")
@click.pass_obj
def command(
    terminal: Terminal, path: Path, port: int | None, host: str, reload: bool, workers: int | None, web: bool
) -> int:
    """Serve the environment in the folder PATH with the running interpreter until Ctrl-C.

    Nothing is isolated and nothing is installed: for that, `openenv launch PATH --provider local`.
    """
    from openenv_sandbox import folder
    from openenv_sandbox.errors import ImageError

    if reload and workers:
        raise click.UsageError("--reload and --workers exclude each other")
    if web and (workers or 1) > 1:
        raise click.UsageError("--web needs one worker: a visitor's environment lives in the process that built it")
    found = folder.read(path.resolve())
    if found.module is None:
        raise ImageError(f"{path}: neither openenv.yaml nor pyproject.toml says which application to serve")
    number = found.port if port is None else port or _free(host)
    argv = [sys.executable, "-m", "uvicorn", found.module, "--host", host, "--port", str(number)]
    argv += ["--reload", "--reload-dir", str(path)] if reload else []
    argv += ["--workers", str(workers)] if workers else []
    with tempfile.TemporaryDirectory(prefix="openenv-serve-") as links:
        address = f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"
        terminal.say(f"serving {found.module} on {address} (Ctrl-C ends it)")
        environment = _environment(found, Path(links))
        if web:
            environment["ENABLE_WEB_INTERFACE"] = "true"
            wanted = "; it asks for the OPENENV_AUTH_TOKEN" if environment.get("OPENENV_AUTH_TOKEN") else ""
            terminal.say(f"the page: {_for_a_browser(address)}/web{wanted}")
        return _run(argv, environment, path)


def _for_a_browser(address: str) -> str:
    """The address as this machine reaches it, where the server listens on all of its own."""
    return address.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:")


def _free(host: str) -> int:
    """A port that is free just now: the server's own choice would come too late to be printed."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        return int(listener.getsockname()[1])


def _environment(found: Folder, links: Path) -> dict[str, str]:
    """The variables under which the folder's modules can be imported; a folder that is a package gets its name."""
    for name, target in found.packages.items():
        (links / name).symlink_to(target, target_is_directory=True)
    paths = [str(links), *found.python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _run(argv: list[str], environment: dict[str, str], cwd: Path) -> int:
    process = subprocess.Popen(argv, env=environment, cwd=cwd)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the terminal has sent it to the server as well, which now shuts down
        return 0 if code in (0, -signal.SIGINT, -signal.SIGTERM, 130) else 1
