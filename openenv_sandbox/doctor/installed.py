"""Which extras are complete, and which installed packages contradict each other. Nothing is imported."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONFLICTS = (
    ("prime-sandboxes", "e2b", "they need different versions of connectrpc"),
    (
        "opensandbox-server",
        "beam-client",
        "they need different versions of fastapi; the server needs a venv of its own",
    ),
)
"""Packages that cannot stand side by side, and why."""

_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_PYTHON = re.compile(r"""python_version\s*>=\s*['"](\d+)\.(\d+)['"]""")
_CLAUSE = re.compile(r"(==|>=|<=|!=|<|>|~=)\s*([\w.*+!-]+)")
_INTERNAL = frozenset({"all", "dev", "dev-clouds", "testing"})


def is_ours(folder: Path) -> bool:
    """Whether the package folder ``openenv`` is the one that belongs to this library."""
    return (folder / "_lazy.py").is_file()


def complete() -> set[str]:
    """Extras whose packages are all there."""
    wanted = _by_extra()
    return {extra for extra, needs in wanted.items() if needs and all(_version(name) for name, _ in needs)}


def problems() -> list[tuple[str, str]]:
    """What is installed and does not fit, and what to do."""
    found = []
    for extra, needs in sorted(_by_extra().items()):
        for name, clauses in needs:
            have = _version(name)
            if have is not None and not _fits(have, clauses):
                text = f"{name} {have} is installed, the extra {extra} wants {name}{clauses}"
                found.append((text, f"pip install 'openenv[{extra}]'"))
    for one, other, why in CONFLICTS:
        if _version(one) and _version(other):
            found.append((f"{one} and {other} are both installed: {why}", f"pip uninstall {one}"))
    return found


def _by_extra() -> dict[str, list[tuple[str, str]]]:
    """Extra to its requirements on this Python, as name and version clauses."""
    try:
        lines = metadata.requires("openenv") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        name = _NAME.match(requirement.strip())
        if extra is None or name is None or extra[1] in _INTERNAL or name[0] == "openenv":
            continue
        floor = _PYTHON.search(marker)
        if floor is None or sys.version_info >= (int(floor[1]), int(floor[2])):
            clauses = requirement.strip()[len(name[0]) :]
            found.setdefault(extra[1], []).append((name[0], re.sub(r"\[[^]]*\]", "", clauses).strip(" ()")))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str, clauses: str) -> bool:
    """Whether a version satisfies simple clauses; what is not understood counts as satisfied."""
    have = _release(version)
    for sign, wanted in _CLAUSE.findall(clauses):
        bound = _release(wanted)
        if (sign == ">=" and have < bound) or (sign == "<" and have >= bound) or (sign == "==" and have != bound):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"(?:a|b|rc|\.dev|\+)", version)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
