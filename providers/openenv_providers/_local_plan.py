"""How an environment folder is started on this machine: which interpreter, which module, what must be visible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from openenv_providers import _local_deps as deps
from openenv_providers._local_bwrap import hops
from openenv_sandbox.errors import ImageError
from openenv_sandbox.folder import read as read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openenv_sandbox.folder import Folder as Folder

NEWEST, OLDEST = 14, 10
_OWN_PACKAGES = ("openenv_sandbox", "openenv_providers", "openenv_adapters", "openenv", "openenv_core")


@dataclass(frozen=True)
class Interpreter:
    """A Python.

    Attributes:
        executable: How it is called; of a virtual environment, the one inside.
        prefixes: Where it and what is installed in it lie.
        base: Which of them stay when another environment is made from it.
        version: ``3.11.7``.
    """

    executable: str
    prefixes: tuple[str, ...]
    base: tuple[str, ...]
    version: str

    @property
    def visible(self) -> list[str]:
        """What must be seen for it to run."""
        return [*self.prefixes, *hops(self.executable)]


def running() -> Interpreter:
    """The interpreter that runs this."""
    base = {sys.base_prefix, sys.base_exec_prefix}
    version = ".".join(map(str, sys.version_info[:3]))
    prefixes = base | {sys.prefix, sys.exec_prefix}
    return Interpreter(sys.executable, tuple(sorted(prefixes)), tuple(sorted(base)), version)


def own_packages() -> list[str]:
    """Folders of our own packages, which an editable installation keeps elsewhere."""
    found: list[str] = []
    for name in _OWN_PACKAGES:
        spec = find_spec(name)
        if spec is not None:
            found += spec.submodule_search_locations or []
    return found


def at_hand(folder: Folder, interpreter: Interpreter) -> str:
    """Why the running interpreter cannot serve ``folder`` as it is; empty when it can."""
    try:
        if not deps.matches(interpreter.version, folder.requires_python):
            return f"it needs Python {folder.requires_python}"
    except ValueError as error:
        return str(error)
    if folder.installed:
        return ""
    return deps.missing(folder.dependencies or (), within=[os.path.realpath(p) for p in interpreter.prefixes])


def choose(folder: Folder, named: str | None) -> Interpreter:
    """The interpreter that an environment of its own is made from.

    Raises:
        ImageError: None on this machine has the version that the folder needs.
    """
    candidates: list[str] = [named] if named else [sys.executable]
    if not named:
        candidates += [f"python3.{minor}" for minor in range(NEWEST, OLDEST - 1, -1)]
    seen = []
    for candidate in candidates:
        found = running() if candidate == sys.executable else ask(candidate)
        if found is None:
            continue
        seen.append(found.version)
        try:
            if deps.matches(found.version, folder.requires_python):
                return found
        except ValueError as error:
            raise ImageError(f"{folder.path}: requires-python: {error}") from None
    raise ImageError(
        f"{folder.path} needs Python {folder.requires_python or 'at all'}, found {', '.join(seen) or 'none'}",
        provider="local",
        hint="install one, or name it: [providers.local] python = …",
    )


def ask(command: str, timeout: float = 20.0) -> Interpreter | None:
    """What an interpreter says about itself; None where it does not run."""
    path = shutil.which(command)
    if path is None:
        return None
    script = (
        "import sys; print('.'.join(map(str, sys.version_info[:3])), sys.executable, "
        "sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix, sep='\\n')"
    )
    argv = [path, "-I", "-c", script]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    if len(lines) != 6:
        return None
    version, executable, *prefixes = lines
    return Interpreter(executable, tuple(sorted(set(prefixes))), tuple(sorted(set(prefixes[:2]))), version)


def reloading(argv: Sequence[str], folder: Folder, interpreter: Interpreter, takes_socket: bool) -> list[str]:
    """The argv that runs ``argv`` and starts it anew when the folder's sources change; see `_local_reload`."""
    socket = "{fd}" if takes_socket else "-1"
    return [interpreter.executable, "-m", "openenv_providers._local_reload", folder.path, socket, *argv]


def server_argv(command: Sequence[str] | None, folder: Folder, interpreter: Interpreter) -> tuple[list[str], bool]:
    """The argv that starts the server, and whether it takes a listening socket (``{fd}``) instead of ``PORT``.

    Raises:
        ImageError: Nothing says what to start.
    """
    if command is None:
        if folder.module is None:
            raise ImageError(
                f"{folder.path}: neither a server script in pyproject.toml nor app in openenv.yaml says what to start",
                provider="local",
                hint="say what to run: command=['python', '-m', '…']",
            )
        return [interpreter.executable, "-m", "uvicorn", folder.module, "--fd", "{fd}"], True
    words = list(command)
    tool = 2 if len(words) > 2 and words[1] == "-m" else 0
    if os.path.basename(words[tool]) != "uvicorn" or any(word.startswith(("--fd", "--uds")) for word in words):
        return words, False
    kept, position = [], 0
    while position < len(words):
        word = words[position]
        if word in ("--host", "--port"):
            position += 1
        elif not word.startswith(("--host=", "--port=")):
            kept.append(word)
        position += 1
    return [*kept, "--fd", "{fd}"], True
