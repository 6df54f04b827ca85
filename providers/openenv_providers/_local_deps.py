"""Whether an interpreter's installed distributions satisfy requirements: without packaging, and never by guessing.

Whatever is not understood (URLs, pre-releases, unknown markers) counts as not satisfied: then an environment of its own
is built, which is slower and always right.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OWN = "openenv"
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?\s*\(?(?P<spec>[^;()@]*)\)?\s*(?:;(?P<marker>.*))?\Z"
)
_CLAUSE = re.compile(r"\s*(~=|==|!=|<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)*(?:\.\*)?)\s*\Z")
_VERSION = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)(?:\.post[0-9]+)?(?:\+[A-Za-z0-9.]+)?\Z")
_TOKEN = re.compile(r"\s*(\(|\)|~=|===?|!=|<=|>=|<|>|\"[^\"]*\"|'[^']*'|[A-Za-z_.]+)")


@dataclass(frozen=True)
class Requirement:
    """One line of dependencies, taken apart."""

    name: str
    extras: tuple[str, ...]
    specifier: str
    marker: str


def parse(text: str) -> Requirement:
    """Take a requirement apart.

    Raises:
        ValueError: It has a form that is not understood.
    """
    match = _REQUIREMENT.match(text)
    if match is None:
        raise ValueError(f"requirement not understood: {text!r}")
    extras = tuple(normal(extra) for extra in (match["extras"] or "").split(",") if extra.strip())
    return Requirement(normal(match["name"]), extras, match["spec"].strip(), (match["marker"] or "").strip())


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def matches(version: str, specifier: str) -> bool:
    """Whether a final ``version`` is within ``specifier``; False for a pre-release.

    Raises:
        ValueError: A clause is not understood.
    """
    found = _VERSION.match(version)
    if found is None:
        return False
    have = _numbers(found[1])
    for clause in filter(None, (part.strip() for part in specifier.split(","))):
        parsed = _CLAUSE.match(clause)
        if parsed is None:
            raise ValueError(f"version clause not understood: {clause!r}")
        if not _holds(have, parsed[1], parsed[2]):
            return False
    return True


def _holds(have: tuple[int, ...], operator: str, text: str) -> bool:
    want = _numbers(text.removesuffix(".*"))
    length = max(len(have), len(want))
    left, right = _padded(have, length), _padded(want, length)
    if text.endswith(".*"):
        if operator not in ("==", "!="):
            raise ValueError(f"{operator}{text} is no version clause")
        return (left[: len(want)] == want) == (operator == "==")
    if operator == "~=":
        return left >= right and left[: len(want) - 1] == want[:-1]
    return {
        "==": left == right,
        "!=": left != right,
        "<=": left <= right,
        ">=": left >= right,
        "<": left < right,
        ">": left > right,
    }[operator]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


class _Marker:
    """A recursive descent over the tokens of an environment marker."""

    def __init__(self, text: str, extra: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"marker not understood: {text!r}")
            self.tokens.append(match[1])
            position = match.end()
        self.values = {
            "python_version": ".".join(map(str, sys.version_info[:2])),
            "python_full_version": ".".join(map(str, sys.version_info[:3])),
            "sys_platform": sys.platform,
            "os_name": os.name,
            "platform_system": platform.system(),
            "platform_machine": platform.machine(),
            "platform_python_implementation": platform.python_implementation(),
            "implementation_name": sys.implementation.name,
            "extra": extra,
        }

    def either(self) -> bool:
        result = self.both()
        while self.tokens[:1] == ["or"]:
            self.tokens.pop(0)
            result = self.both() or result
        return result

    def both(self) -> bool:
        result = self.one()
        while self.tokens[:1] == ["and"]:
            self.tokens.pop(0)
            result = self.one() and result
        return result

    def one(self) -> bool:
        if self.tokens[:1] == ["("]:
            self.tokens.pop(0)
            result = self.either()
            self.take()
            return result
        left, operator, right = self.take(), self.take(), self.take()
        if operator == "not":
            operator, right = f"not {right}", self.take()
        name = left if left[0] not in "\"'" else right
        first, second = self.value(left), self.value(right)
        if operator in ("in", "not in"):
            return (first in second) == (operator == "in")
        if "version" in name and operator != "===":
            return matches(first, operator + second)
        if operator not in ("==", "!="):
            raise ValueError(f"marker operator not understood: {operator!r}")
        if name == "extra":
            first, second = normal(first), normal(second)
        return (first == second) == (operator == "==")

    def take(self) -> str:
        if not self.tokens:
            raise ValueError("marker ends early")
        return self.tokens.pop(0)

    def value(self, token: str) -> str:
        if token[0] in "\"'":
            return token[1:-1]
        if token not in self.values:
            raise ValueError(f"marker variable not understood: {token!r}")
        return self.values[token]


def applies(marker: str, extra: str = "") -> bool:
    """Whether a marker holds for the running interpreter.

    Raises:
        ValueError: It is not understood.
    """
    if not marker:
        return True
    parsed = _Marker(marker, extra)
    result = parsed.either()
    if parsed.tokens:
        raise ValueError(f"marker not understood: {marker!r}")
    return result


def missing(requirements: Iterable[str], *, within: Sequence[str]) -> str:
    """The first reason why the running interpreter does not satisfy ``requirements``; empty when it does.

    Args:
        requirements: As in ``project.dependencies``.
        within: Folders in which a distribution must lie to be visible in a sandbox.
    """
    todo = list(requirements)
    seen: set[tuple[str, str]] = set()
    try:
        while todo:
            text = todo.pop()
            wanted = parse(text)
            if not applies(wanted.marker):
                continue
            # The older implementation's other name: what it offers, this one does.
            name = OWN if wanted.name == "openenv-core" else wanted.name
            try:
                found = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                return f"{text.strip()} is not installed"
            if not matches(found.version, wanted.specifier):
                return f"{text.strip()} is wanted, {found.version} installed"
            if name != OWN and not _visible(found, within):
                return f"{name} is installed outside of the interpreter"
            for extra in wanted.extras:
                if (name, extra) not in seen:
                    seen.add((name, extra))
                    todo += _of_extra(found, extra)
    except ValueError as error:
        return str(error)
    return ""


def _of_extra(found: metadata.Distribution, extra: str) -> list[str]:
    wanted = []
    for line in found.requires or []:
        parsed = parse(line)
        if "extra" in parsed.marker and applies(parsed.marker, extra):
            extras = f"[{','.join(parsed.extras)}]" if parsed.extras else ""
            wanted.append(f"{parsed.name}{extras}{parsed.specifier}")
    return wanted


def _visible(found: metadata.Distribution, within: Sequence[str]) -> bool:
    url = found.read_text("direct_url.json")
    if url and json.loads(url).get("dir_info", {}).get("editable"):
        return False
    place = os.path.realpath(str(found.locate_file("")))
    return any(place == folder or place.startswith(folder.rstrip("/") + "/") for folder in within)
