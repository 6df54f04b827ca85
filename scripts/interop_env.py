"""Make what our tests talk to in environments of their own, once, and print the interpreters.

    python scripts/interop_env.py [NAME ...]

A name is a release of the published package, or `mcp-1` and `mcp-2` for the official MCP client of each major version.
Without a name: all of RELEASES and CLIENTS. The environments lie under OPENENV_INTEROP_DIR, or under the user's
cache folder; a later run finds them there. OPENENV_INTEROP_DIR may also be an environment itself: then nothing is made,
and the release it holds is the only one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Releases before fastmcp 4 do not bound it and do not import beside it.
RELEASES = {"0.10.0": ["fastmcp<4"], "0.6.0": ["fastmcp<4"]}
# Neither can stand beside the other, nor the second beside fastmcp 3.
CLIENTS = {"mcp-1": ["mcp>=1.20,<2"], "mcp-2": ["mcp>=2.3,<3"]}


def folder() -> Path:
    """Where the environments are."""
    named = os.environ.get("OPENENV_INTEROP_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache) / "openenv" / "interop"


def installed(python: Path, package: str = "openenv") -> str | None:
    """Version of a package, by default the published one, that an interpreter has."""
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find(version: str) -> Path | None:
    """The interpreter that has ``version``, if it was made before."""
    if version in CLIENTS:
        python = folder() / version / "bin" / "python"
        return python if installed(python, "mcp") is not None else None
    for python in (folder() / "bin" / "python", folder() / version / "bin" / "python"):
        if installed(python) == version:
            return python
    return None


def make(version: str) -> Path:
    """Make the environment; a half-made one is made again."""
    target = folder() / version
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
    python = target / "bin" / "python"
    packages = CLIENTS.get(version) or [f"openenv=={version}", *RELEASES.get(version, [])]
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, stdout=sys.stderr)
    return python


def main() -> None:
    """Print one interpreter a line."""
    given = folder() / "bin" / "python"
    if given.exists():
        held = installed(given)
        if held is None or (sys.argv[1:] and sys.argv[1:] != [held]):
            sys.exit(f"{folder()} is an environment with openenv {held}; name a folder of environments instead")
        sys.stdout.write(f"{given}\n")
        return
    for version in sys.argv[1:] or [*RELEASES, *CLIENTS]:
        sys.stdout.write(f"{find(version) or make(version)}\n")


if __name__ == "__main__":
    main()
