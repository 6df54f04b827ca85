"""Reads names.txt."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("names.txt")
_LINE = re.compile(r"^([\w.]+):([\w.]+)(?:\((.*)\)|\{(.*)\})?(?: ! (.+))?$")

ANY = "..."
Parameter = tuple[str, str, object]
"""Name, kind as `inspect` spells it, and the default: ``ANY`` for any, ``inspect.Parameter.empty``'s name for none."""


@dataclass(frozen=True)
class Name:
    """One line: what is imported from where, and how it looks."""

    module: str
    path: str
    parameters: tuple[Parameter, ...] | None
    fields: tuple[str, ...] | None
    absent: str | None

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"


def names() -> list[Name]:
    """Every line of the list."""
    found = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.match(line)
        assert match is not None, f"cannot read {line!r}"
        module, path, signature, fields, absent = match.groups()
        parameters = None if signature is None else tuple(_parameters(signature))
        split = None if fields is None else tuple(field.strip() for field in fields.split(","))
        found.append(Name(module, path, parameters, split, absent))
    return found


def _parameters(signature: str) -> list[Parameter]:
    function = ast.parse(f"def f({signature}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    none = [None] * (len(args.args) - len(args.defaults))
    found = [
        (arg.arg, "POSITIONAL_OR_KEYWORD", _default(default))
        for arg, default in zip(args.args, [*none, *args.defaults], strict=True)
    ]
    if args.vararg:
        found.append((args.vararg.arg, "VAR_POSITIONAL", "empty"))
    found += [
        (arg.arg, "KEYWORD_ONLY", _default(default))
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        found.append((args.kwarg.arg, "VAR_KEYWORD", "empty"))
    return found


def _default(node: ast.expr | None) -> object:
    if node is None:
        return "empty"
    value = ast.literal_eval(node)
    return ANY if value is ... else (value,)
