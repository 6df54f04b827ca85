"""A new environment's folder, from templates."""

from __future__ import annotations

import keyword
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from openenv_sandbox._paths import remove_tree
from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from re import Match

SUFFIX = ".in"
"""Of every template: an unfilled one is no Python module, and no tool takes it for one."""

TEMPLATES = Path(__file__).with_name("templates")
LONGEST = 24

_IMPORT = re.compile(r"^(from \S+ import )(\w+(?:, \w+)+)$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def scaffold(name: str, parent: Path, *, tools: bool = False) -> Path:
    """Write a new environment.

    Args:
        name: Of the package and its folder: ``[a-z][a-z0-9_]*``, at most 24 characters.
        parent: Where the folder is made.
        tools: With tools as actions instead of an action of its own.

    Returns:
        The folder.

    Raises:
        ConfigError: The name cannot be that of a package, the folder exists and is not empty, or it cannot be written.
            Nothing is left.
    """
    check_name(name)
    target = parent / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not empty", hint="choose another name or --output folder")
    new = not os.path.lexists(target)
    try:
        _write(target, _values(name), "tools" if tools else "plain")
    except BaseException as error:
        if new:
            remove_tree(target)
        if isinstance(error, OSError):
            raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from error
        raise
    return target


def _write(target: Path, values: dict[str, str], kind: str) -> None:
    for part in ("common", kind):
        root = TEMPLATES / part
        for template in sorted(root.rglob(f"*{SUFFIX}")):
            file = target / _fill(template.relative_to(root).as_posix().removesuffix(SUFFIX), values)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_fill(template.read_text(encoding="utf-8"), values), encoding="utf-8")


def check_name(name: str) -> None:
    """Make sure that a package may have this name.

    Raises:
        ConfigError: It may not; the hint says which may.
    """
    if len(name) > LONGEST:
        raise ConfigError(f"{name!r} is longer than {LONGEST} characters", hint="it stands in every image and label")
    if _NAME.match(name) and not keyword.iskeyword(name) and name not in sys.stdlib_module_names:
        if name in ("openenv", "openenv_core", "openenv_sandbox", "server", "models", "client"):
            raise ConfigError(f"{name!r} is a name that environments import already", hint="for example: my_env")
        return
    near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    near = near if _NAME.match(near) else f"env_{near}" if near else "my_env"
    if keyword.iskeyword(near) or near in sys.stdlib_module_names:
        near = f"{near}_env"
    raise ConfigError(f"{name!r} cannot be the name of a Python package", hint=f"for example: openenv init {near}")


def _values(name: str) -> dict[str, str]:
    from importlib.metadata import version

    words = [word for word in name.split("_") if word]
    prefix = "".join(word.capitalize() for word in (words[:-1] if words[-1] == "env" and len(words) > 1 else words))
    return {
        "__name__": name,
        "__dashed__": "-".join(words),
        "__title__": " ".join(words).capitalize(),
        "__Prefix__": prefix,
        "__version__": ".".join(version("openenv").split(".")[:2]),
    }


def _fill(text: str, values: dict[str, str]) -> str:
    # Python's own `if __name__ == "__main__"` keeps its name.
    text = text.replace('if __name__ == "__main__"', "\0")
    for mark, value in values.items():
        text = text.replace(mark, value)
    # Where a name stands among others depends on the name.
    return _IMPORT.sub(_sorted, text).replace("\0", 'if __name__ == "__main__"')


def _sorted(found: Match[str]) -> str:
    names = sorted(found[2].split(", "), key=lambda name: (not name.isupper(), name[0].islower(), name))
    return found[1] + ", ".join(names)
