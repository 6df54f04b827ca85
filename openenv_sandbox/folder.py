"""An environment folder as a program: which application it serves, what must be importable, what it needs installed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox import _manifest
from openenv_sandbox.errors import ImageError

if TYPE_CHECKING:
    from pathlib import Path


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
        port: Where its server listens unless told otherwise.
    """

    path: str
    module: str | None
    packages: dict[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    requires_python: str = ""
    dependencies: tuple[str, ...] | None = None
    installed: bool = False
    port: int = _manifest.DEFAULT_PORT


def read(path: Path) -> Folder:
    """Read openenv.yaml and pyproject.toml of a folder.

    The order that starts every existing environment: the module of the ``server`` script with the folder importable as
    its package, else ``app`` of openenv.yaml from inside the folder.

    Raises:
        ImageError: One of them is missing or malformed.
    """
    manifest = _manifest.load(path)
    project = _project(path)
    installed = any(path.is_relative_to(os.path.realpath(p)) for p in sys.path if p.endswith("-packages"))
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
        manifest.port,
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
