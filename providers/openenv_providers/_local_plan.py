"""How an environment folder is started on this machine: which interpreter, which module, what must be visible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from openenv_providers import _local_deps as deps
from openenv_providers._local_bwrap import hops, inside
from openenv_sandbox import _manifest
from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


@dataclass(frozen=True)
class Folder:
    """What an environment folder says about itself.

    Attributes:
        path: The folder.
        module: ``module:attribute`` of the application, importable with ``python_path`` in front.
        packages: Name to folder, for packages that have no folder of their name.
        python_path: Folders to import from.
        requires_python: Version clauses, empty for any.
        dependencies: Requirements; None when nothing is declared.
        installed: Whether it lies in the running interpreter's own packages.
    """

    path: str
    module: str | None
    packages: dict[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    requires_python: str = ""
    dependencies: tuple[str, ...] | None = None
    installed: bool = False


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


def read(path: Path) -> Folder:
    """Read openenv.yaml and pyproject.toml of a folder.

    The order that starts every existing environment: the module of the ``server`` script with the folder importable as
    its package, else ``app`` of openenv.yaml from inside the folder.

    Raises:
        ImageError: One of them is missing or malformed.
    """
    manifest = _manifest.load(path)
    project = _project(path)
    installed = any(inside(str(path), os.path.realpath(p)) for p in sys.path if p.endswith("-packages"))
    scripts = project.get("scripts")
    script = scripts.get("server") if isinstance(scripts, dict) else None
    module: str | None = None
    if isinstance(script, str) and ":" in script:
        attribute = manifest.app.partition(":")[2] if manifest.app else ""
        module = f"{script.partition(':')[0].strip()}:{attribute or 'app'}"
    elif manifest.app and path.name.isidentifier() and (path / "__init__.py").is_file():
        module = f"{path.name}.{manifest.app}"
    elif manifest.app:
        module = manifest.app
    packages: dict[str, str] = {}
    python_path = [str(path)]
    if module is not None:
        top = module.partition(":")[0].partition(".")[0]
        declared = _package_dirs(project).get(top)
        if declared is not None:
            packages[top] = os.path.normpath(path / declared)
        elif (path / "src" / top).is_dir():
            python_path.insert(0, str(path / "src"))
        elif not (path / top).is_dir() and not (path / f"{top}.py").is_file():
            packages[top] = str(path)  # the folder is the package
    wanted = project.get("dependencies")
    dependencies = tuple(map(str, wanted)) if isinstance(wanted, list) else _requirements_file(path)
    requires = project.get("requires-python")
    return Folder(
        str(path),
        module,
        packages,
        tuple(python_path),
        requires if isinstance(requires, str) else "",
        dependencies,
        installed,
    )


def _project(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    file = path / "pyproject.toml"
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ImageError(f"{file} cannot be read: {error}") from error
    project = data.get("project")
    found: dict[str, Any] = dict(project) if isinstance(project, dict) else {}
    tool = data.get("tool")
    found["tool"] = tool if isinstance(tool, dict) else {}
    return found


def _package_dirs(project: dict[str, Any]) -> dict[str, str]:
    declared: Any = project.get("tool", {})
    for name in ("setuptools", "package-dir"):
        declared = declared.get(name) if isinstance(declared, dict) else None
    return {str(k): str(v) for k, v in declared.items() if k} if isinstance(declared, dict) else {}


def _requirements_file(path: Path) -> tuple[str, ...] | None:
    for file in (path / "server" / "requirements.txt", path / "requirements.txt"):
        if file.is_file():
            lines = (line.partition(" #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
            return tuple(line for line in lines if line and not line.startswith("#"))
    return None


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
    version, executable, *prefixes = done.stdout.splitlines()
    return Interpreter(executable, tuple(sorted(set(prefixes))), tuple(sorted(set(prefixes[:2]))), version)


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
