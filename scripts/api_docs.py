"""Makes docs/reference/api.md from signatures and docstrings of the public names: api_docs.py [--check]."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_origin

from _pages import ROOT, cell, write_or_check

import openenv_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "reference" / "api.md"
HEAD = """# Python API

Made by `scripts/api_docs.py` from signatures and docstrings. Every name is imported from `openenv_sandbox`; what is not
on this page, and not [for writing a backend](../writing-a-backend.md), is not public. Nothing is loaded before it is
used: `import openenv_sandbox` imports no SDK and no web framework.
"""
# Module of a name -> the section it stands in; sections in this order.
SECTIONS = {
    "Launching": ("launcher", "running", "process", "events", "shell", "registry"),
    "What is asked for": ("spec",),
    "Clients": ("client",),
    "Environments": ("models", "server"),
    "Backends": ("provider", "capabilities", "options"),
    "Errors": ("errors",),
}
_TITLES = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example|Examples):\Z")


def page() -> str:
    """The page.

    Raises:
        ValueError: A public name has no section.
    """
    homes = openenv_sandbox._HOMES
    left = set(homes) - {name for name, home in homes.items() if any(home in s for s in SECTIONS.values())}
    if left:
        raise ValueError(f"no section of scripts/api_docs.py for {sorted(left)}")
    parts = [HEAD, "`openenv_sandbox.__version__` is the version as text.\n"]
    for title, modules in SECTIONS.items():
        names = sorted((n for n, home in homes.items() if home in modules), key=lambda n: _order(n, modules))
        parts.append(f"## {title}\n\n{_links(names)}\n")
        parts += [_entry(name, getattr(openenv_sandbox, name)) for name in names]
    return "\n".join(parts)


def _order(name: str, modules: tuple[str, ...]) -> tuple[int, bool, str]:
    # Functions come first: they are what one calls.
    return modules.index(openenv_sandbox._HOMES[name]), not inspect.isfunction(getattr(openenv_sandbox, name)), name


def _links(names: list[str]) -> str:
    return " · ".join(f"[`{name}`](#{name.lower()})" for name in names)


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value) and get_origin(value) is None:  # an alias is a class on Python 3.10
        return _class(name, value)
    if inspect.isfunction(value):
        return f"### {name}\n\n{_code(_signature(value, name))}\n\n{_text(value.__doc__)}\n"
    definition, said = _alias(name)
    return f"### {name}\n\n{_code(definition)}\n" + (f"\n{said}\n" if said else "")


def _class(name: str, cls: type) -> str:
    # A base that is neither public nor of Python is how a class is built, not what it is.
    bases = ", ".join(
        b.__name__
        for b in cls.__bases__
        if b.__name__ not in ("object", "Generic")
        and (b.__name__ in openenv_sandbox.__all__ or not b.__module__.startswith("openenv"))
    )
    said, attributes = _split(cls.__doc__)
    lines = [f"### {name}\n", _code(f"class {name}({bases})" if bases else f"class {name}"), "", _text(said), ""]
    rows = list(_rows(cls, attributes))
    if rows:
        lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    if issubclass(cls, Exception):
        return "\n".join(lines)
    if "__init__" in cls.__dict__ and not is_dataclass(cls):
        lines.append(_code(_signature(cls.__dict__["__init__"], name)) + "\n")
    for member, function in _members(cls):
        lines.append(f"#### {name}.{member}\n\n{_code(_signature(function, member))}\n\n{_text(function.__doc__)}\n")
    return "\n".join(lines)


def _split(docstring: str | None) -> tuple[str, dict[str, str]]:
    """A docstring without its attributes, and these."""
    text = inspect.cleandoc(docstring or "")
    before, found, block = text.partition("Attributes:\n")
    if not found:
        return text, {}
    attributes: dict[str, str] = {}
    name = ""
    lines = block.splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("    ")):
        line = lines.pop(0)
        head = re.match(r" {4}(\w+): (.*)", line)
        name = head[1] if head else name
        attributes[name] = head[2] if head else f"{attributes[name]} {line.strip()}"
    return before + "\n".join(lines), attributes


def _rows(cls: type, attributes: dict[str, str]) -> Iterator[str]:
    """One row for each field of a model or dataclass, and for each further attribute that is told."""
    model = getattr(cls, "model_fields", None)
    found: dict[str, tuple[str, str]] = {}
    if model is not None:
        for name, info in model.items():
            made = info.is_required() or info.default_factory is not None
            default = ("required" if info.is_required() else "") if made else _value(info.default)
            found[name] = default, attributes.get(name, info.description or "")
    elif is_dataclass(cls):
        for item in fields(cls):
            required = item.default is MISSING and item.default_factory is MISSING
            default = "required" if required else "" if item.default is MISSING else _value(item.default)
            found[item.name] = default, attributes.get(item.name, "")
    for name, text in attributes.items():
        found.setdefault(name, ("", text))
    for name, (default, text) in found.items():
        if not name.startswith("_"):
            kind = _annotation(cls, name)
            yield f"| `{name}` | {f'`{kind}`' if kind else ''} | {cell(default)} | {cell(text).replace('``', '`')} |"


def _members(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties that are documented, its own first, then those of its bases."""
    found: dict[str, Any] = {}
    for owner in cls.__mro__:
        if not owner.__module__.startswith("openenv_sandbox"):
            continue
        if owner is not cls and owner.__name__ in openenv_sandbox.__all__:
            break  # it has an entry of its own
        for name, member in owner.__dict__.items():
            function = _function(member)
            if not name.startswith("_") and function is not None and function.__doc__:
                found.setdefault(name, function)
    return list(found.items())


def _function(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, functools.cached_property):
        member = member.func
    return inspect.unwrap(member) if inspect.isfunction(member) else None


def _value(value: Any) -> str:
    if isinstance(value, frozenset):  # has no order of its own
        return "`{" + ", ".join(sorted(map(repr, value))) + "}`" if value else "`{}`"
    return f"`{value!r}`"


def _annotation(cls: type, name: str) -> str:
    for owner in cls.__mro__:
        if owner.__module__.startswith("openenv_sandbox"):
            for node in _source(owner).body[0].body:  # type: ignore[attr-defined]
                if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
                    return cell(ast.unparse(node.annotation))
    return ""


@functools.cache
def _source(value: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(value)))


def _signature(function: Any, name: str) -> str:
    """As it is written in the source, so that no Python version spells it in another way."""
    node = next(n for n in ast.walk(_source(function)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    prefix = "async def " if isinstance(node, ast.AsyncFunctionDef) else ""
    if any(getattr(d, "id", getattr(d, "attr", "")) in ("property", "cached_property") for d in node.decorator_list):
        return f"{name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    elif arguments.posonlyargs and arguments.posonlyargs[0].arg in ("self", "cls"):
        arguments.posonlyargs.pop(0)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    pieces = list(_arguments(arguments))
    one = f"{prefix}{name}({', '.join(pieces)}){returns}"
    _source.cache_clear()  # the tree was changed
    if len(one) <= 100:
        return one
    return f"{prefix}{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){returns}"


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for index, (argument, default) in enumerate(zip(plain, defaults, strict=True)):
        yield _argument(argument, default)
        if index + 1 == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield "*" + _argument(arguments.vararg, None)
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(argument, default)
    if arguments.kwarg:
        yield "**" + _argument(arguments.kwarg, None)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    equals = " = " if kind else "="
    return f"{argument.arg}{kind}" + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def _alias(name: str) -> tuple[str, str]:
    """Definition of a type alias and the string that follows it."""
    module = sys.modules[f"openenv_sandbox.{openenv_sandbox._HOMES[name]}"]
    for candidate in (module, sys.modules["openenv_sandbox.values"]):
        body = ast.parse(inspect.getsource(candidate)).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
                value = after.value if isinstance(after, ast.Expr) else None
                said = _text(value.value) if isinstance(value, ast.Constant) else ""
                return ast.unparse(node), said
    raise ValueError(f"no definition of {name}")


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


def _text(docstring: str | None) -> str:
    """A docstring as Markdown: its sections become lists."""
    text = re.sub(r"(?m)^(    [\w, ]+,)\n +", r"\1 ", inspect.cleandoc(docstring or ""))
    lines, out, section = text.splitlines(), [], ""
    for line in lines:
        title = _TITLES.match(line)
        if title:
            section = title[1]
            out.append(f"**{section}**\n")
            continue
        if section and line and not line.startswith(" "):
            section = ""
        head = re.match(r"    (\*{0,2}[\w.]+(?:, [\w.]+)*): ?(.*)", line)
        if section in ("Args", "Attributes", "Raises", "Yields") and head and not line.startswith("     "):
            out.append(f"- `{head[1]}`: {head[2]}")
        elif section and line.strip():
            out.append(("  " if section not in ("Returns",) else "") + line.strip())
        else:
            out.append(line)
    return "\n".join(out).replace("``", "`").strip()


if __name__ == "__main__":
    write_or_check(PAGE, page())
