"""Makes the tables of docs/backends: backend_docs.py [--check].

Each page holds prose and, between markers, what is made from the provider's class, `pyproject.toml`,
`tests/expected.toml` and `docs/verified.json`; `docs/backends/index.md` is made as a whole. The test suite checks that
the pages are up to date.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
from openenv_sandbox.options import trusted_fields
from openenv_sandbox.provider import install_hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from openenv_sandbox.provider import SandboxProvider

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "backends"
SECTIONS = ("install", "options", "capabilities", "verified")
MARK = "<!-- {name}: made by scripts/backend_docs.py -->"
END = "<!-- end -->"
PROVES = {
    "live": "It ran against the vendor's own service.",
    "engine": "The real engine ran on the machine of the tests: nothing is simulated.",
    "emulator": "The vendor's own SDK, with the files that pip installed, spoke to an emulator of the service on "
    "127.0.0.1, which really runs commands, serves ports and makes faults. That proves what is sent, what is made of "
    "every answer, and that nothing is left behind; it does not prove that the service answers as the emulator does. "
    "What is assumed about the service without having been seen is marked UNVERIFIED in `tests/emulators/faces`.",
    "cli": "A stand-in for the program really ran the commands on the machine of the tests; the program did not.",
    "sdk-fake": "Functions of the SDK were replaced: that proves our calls of them, and nothing else.",
    "none": "It has not been run.",
}
MATRIX = ("images", "start", "ports", "exposure", "network", "isolation", "gpus", "lifetime", "pause", "snapshot")
HEAD = """# Backends

One row for each backend; the same script runs on all of them. Each name leads to its page.
"""


def read(path: str) -> dict[str, Any]:
    """A TOML file of the repository."""
    with (ROOT / path).open("rb") as file:
        return dict(tomllib.load(file))


def backends() -> dict[str, type[SandboxProvider]]:
    """Every backend of this distribution by name, whether it is installed or not."""
    points = read("pyproject.toml")["project"]["entry-points"]["openenv.sandbox_providers"]
    found = {}
    for name, target in sorted(points.items()):
        module, _, cls = target.partition(":")
        found[name] = getattr(importlib.import_module(module), cls)
    return found


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def install(cls: type[SandboxProvider]) -> str:
    """What pip is told, and what that brings."""
    floor = ".".join(map(str, cls.python))
    if cls.extra is None and not cls.sdk:
        return f"Nothing to install. Python {floor} or later."
    brings = read("pyproject.toml")["project"]["optional-dependencies"].get(cls.extra, [])
    said = ", ".join(f"`{requirement.partition(';')[0].strip()}`" for requirement in brings)
    variables = ", ".join(f"`{name}`" for name in cls.env_vars)
    login = f" Credentials: {variables}." if variables else ""
    return f"`{install_hint(cls)}`, which brings {said}. Python {floor} or later.{login}"


def options(cls: type[SandboxProvider]) -> str:
    """The options with their types and defaults."""
    texts, trusted = documented(cls.Options), trusted_fields(cls.Options)
    rows: list[tuple[str, ...]] = []
    for name, info in cls.Options.model_fields.items():
        said = (info.description or texts.get(name, "")).strip()
        said += " *Trusted.*" if name in trusted else ""
        default = "required" if info.is_required() else f"`{info.get_default(call_default_factory=True)!r}`"
        rows.append((f"`{name}`", f"`{spelled(info.annotation)}`", default, said))
    if not rows:
        return "None."
    variable = (
        f"OPENENV_PROVIDERS__{cls.name.upper().replace('-', '_')}__" + next(iter(cls.Options.model_fields)).upper()
    )
    return (
        table(("option", "type", "default", "what it is"), rows)
        + f"\n\nGiven as `options`, as `[providers.{cls.name}]` in a configuration file, or as variables: `{variable}`."
    )


def documented(model: type) -> dict[str, str]:
    """The ``Attributes:`` of a docstring."""
    text = inspect.getdoc(model) or ""
    _, _, block = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        head = re.match(r" {4}(\w+): (.*)", line)
        if head:
            name = head[1]
            found[name] = head[2]
        elif name and line.startswith("     "):
            found[name] += " " + line.strip()
        elif line.strip():
            break
    return {key: value.replace("``", "`") for key, value in found.items()}


def spelled(annotation: Any) -> str:
    """A type as one writes it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(f'"{arg}"' if isinstance(arg, str) else str(arg) for arg in args)
    if origin is Union or isinstance(annotation, types.UnionType):
        return " | ".join(spelled(arg) for arg in args)
    if annotation is type(None):
        return "None"
    if origin is not None and hasattr(origin, "__name__"):
        inner = ", ".join("..." if arg is Ellipsis else spelled(arg) for arg in args)
        return f"{origin.__name__}[{inner}]"
    return getattr(annotation, "__name__", str(annotation))


def plain(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, (set, frozenset, tuple, list)):
        items = sorted(map(str, value)) if isinstance(value, (set, frozenset)) else list(map(str, value))
        return ", ".join(items) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if value is None else str(value)


def capabilities(cls: type[SandboxProvider]) -> str:
    """Everything declared, with what the SDK could do beyond it and why that is not used."""
    declined = read("tests/expected.toml").get(cls.name, {}).get("declined", {})
    texts = documented(Capabilities)
    rows: list[tuple[str, ...]] = []
    for item in fields(Capabilities):
        if item.name in ("exec", "sizes"):
            continue
        value = cls.capabilities.image_parts if item.name == "keeps" else getattr(cls.capabilities, item.name)
        rows.append((f"`{item.name}`", plain(value), texts.get(item.name, "")))
    rows += list(_exec(cls))
    sizes = cls.capabilities.sizes
    sold = "; ".join(
        f"{name} {plain(getattr(sizes, name))}" for name in ("cpus", "memory_mb", "disk_mb") if getattr(sizes, name)
    )
    rows.append(("`sizes`", sold or "any", f"Sizes sold; bounded: {plain(sizes.limits)}."))
    text = table(("capability", "here", "meaning"), rows)
    if declined:
        text += "\n\nThe SDK could do more than is used:\n\n"
        text += "\n".join(f"- `{key.replace('exec_', 'exec.')}`: {reason}." for key, reason in sorted(declined.items()))
    return text


def _exec(cls: type[SandboxProvider]) -> Iterator[tuple[str, str, str]]:
    native = cls.capabilities.exec
    if native is None:
        yield "`exec`", "no", "Commands."
        return
    texts = documented(ExecCapabilities)
    for item in fields(ExecCapabilities):
        yield f"`exec.{item.name}`", plain(getattr(native, item.name)), texts.get(item.name, "")


def verified(cls: type[SandboxProvider]) -> str:
    """How the backend was last run, from the record of the run, and what that proves."""
    ran = json.loads((ROOT / "docs" / "verified.json").read_text(encoding="utf-8"))["backends"].get(cls.name)
    if ran is None:
        return f"**Not verified in this version.** {PROVES['none']}"
    counts = f": {ran['counts']}" if ran.get("counts") else ""
    note = f" {cls.verified.note[:1].upper()}{cls.verified.note[1:]}." if cls.verified.note else ""
    return f"**{ran['how']}**, {ran['sdk']}, {ran['date']}, commit {ran['commit']}{counts}.{note} {PROVES[ran['how']]}"


def page(text: str, cls: type[SandboxProvider]) -> str:
    """The page with its parts made anew.

    Raises:
        ValueError: A pair of markers is missing.
    """
    for name in SECTIONS:
        begin = MARK.format(name=name)
        head, found, rest = text.partition(begin + "\n")
        _, ended, tail = rest.partition(END)
        if not found or not ended:
            raise ValueError(f"docs/backends/{cls.name}.md lacks the lines {begin!r} and {END!r}")
        text = f"{head}{begin}\n\n{globals()[name](cls)}\n\n{END}{tail}"
    return text


def fresh(cls: type[SandboxProvider]) -> str:
    """A page to begin with."""
    parts = [f"# {cls.name}\n\n{cls.title}."]
    parts += [f"## {name.capitalize()}\n\n{MARK.format(name=name)}\n{END}" for name in SECTIONS]
    return "\n\n".join(parts) + "\n"


def matrix(found: dict[str, type[SandboxProvider]]) -> str:
    """The page of all."""
    expected = read("tests/expected.toml")
    record = json.loads((ROOT / "docs" / "verified.json").read_text(encoding="utf-8"))["backends"]
    rows = [
        (
            f"[{name}]({name}.md)",
            *(plain(getattr(cls.capabilities, column)) for column in MATRIX),
            record.get(name, {}).get("how", "none"),
        )
        for name, cls in found.items()
    ]
    private = [
        (f"[{name}]({name}.md)", expected[name]["private"], install_hint(cls) if cls.sdk else "nothing to install")
        for name, cls in found.items()
        if name in expected
    ]
    ways = [(f"`{how}`", text) for how, text in PROVES.items()]
    return "\n".join(
        [
            HEAD,
            table(("backend", *MATRIX, "verified"), rows),
            "\n## How a port stays private\n",
            table(("backend", "private form", "install"), [(n, p, f"`{i}`") for n, p, i in private]),
            "\n## What *verified* means\n",
            table(("word", "what it proves"), ways),
            "",
        ]
    )


def wanted() -> tuple[dict[Path, str], list[str]]:
    """Every page as it should be, and what is wrong with those that cannot be made."""
    found = backends()
    pages, wrong = {FOLDER / "index.md": matrix(found)}, []
    for name, cls in found.items():
        path = FOLDER / f"{name}.md"
        try:
            pages[path] = page(path.read_text(encoding="utf-8") if path.exists() else fresh(cls), cls)
        except ValueError as error:
            wrong.append(str(error))
    return pages, wrong


def main() -> None:
    """Write the pages, or with --check say which differ."""
    pages, wrong = wanted()
    for path, text in pages.items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(f"{path.relative_to(ROOT)} is stale: run scripts/backend_docs.py")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
