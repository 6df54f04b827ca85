"""Who may import whom, how long a file may be, and which names are public."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import openenv_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CORE = ROOT / "openenv_sandbox"
PROVIDERS = ROOT / "providers" / "openenv_providers"
# Callers catch NotImplementedError of these on purpose: a container of rubrics has no score of its own, and a harness
# adapter has one of two ways to run.
REFUSES_BY_CONTRACT = {"openenv_sandbox/rubrics/containers.py", "openenv_sandbox/harness/adapters.py"}
CONTRACT = {"clock", "errors", "spec", "capabilities", "values", "endpoint", "provider", "options", "models", "redact"}
LAUNCHER = set("launcher pipeline creating starting exec_server owner attaching keepalive pushing reaper fleet".split())


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module a file imports, and whether that happens when the file itself is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in lazy
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, id(node) not in lazy
            if node.module == "openenv_sandbox":
                for alias in node.names:
                    yield f"openenv_sandbox.{alias.name}", id(node) not in lazy


def core_files() -> list[Path]:
    return sorted(CORE.rglob("*.py"))


def part_of(path: Path) -> str:
    """``wire``, ``client``, … or the module's own name at top level."""
    relative = path.relative_to(CORE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def forbidden(part: str, module: str, eager: bool) -> str | None:
    """Why ``part`` must not import ``module``; None when it may."""
    if module.split(".")[0] in {"openenv_providers", "openenv_adapters", "openenv", "openenv_core"}:
        return "core imports no provider and no adapter"
    if not module.startswith("openenv_sandbox."):
        return None
    target = module.split(".")[1]
    if part in CONTRACT and target not in CONTRACT:
        return "the contract imports nothing of the rest"
    if part == "wire" and target in {"client", "server", *LAUNCHER}:
        return "wire knows neither client nor server"
    if part == "client" and target == "server":
        return "the client never imports the server"
    if part == "server" and target in {"client", "running", *LAUNCHER}:
        return "the server knows no client and no launcher"
    if part != "cli" and target == "cli":
        return "nothing but the command line uses the command line"
    return None


def test_core_keeps_its_layers() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {module}: {reason}"
        for path in core_files()
        for module, eager in imports(path)
        if (reason := forbidden(part_of(path), module, eager))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("part", "module"),
    [
        ("launch", "openenv_providers.docker"),
        ("spec", "openenv_sandbox.launcher"),
        ("wire", "openenv_sandbox.server.app"),
        ("client", "openenv_sandbox.server"),
        ("running", "openenv_sandbox.cli.terminal"),
    ],
)
def test_a_broken_layer_is_noticed(part: str, module: str) -> None:
    assert forbidden(part, module, eager=True)


def test_a_provider_imports_no_other_provider_launcher_or_fleet() -> None:
    found = []
    for path in sorted(PROVIDERS.glob("*.py")):
        for module, _ in imports(path):
            head, _, tail = module.partition(".")
            if head == "openenv_providers" and tail and not tail.startswith("_"):
                found.append(f"{path.name} imports {module}")
            if head == "openenv_sandbox" and tail.split(".")[0] in {"client", "server", "cli", "registry", *LAUNCHER}:
                found.append(f"{path.name} imports {module}")
    assert not found, "\n".join(found)


def test_a_provider_module_imports_only_the_standard_library_and_ours_at_top_level() -> None:
    import sys

    allowed = {*sys.stdlib_module_names, "openenv_sandbox", "openenv_providers", "pydantic"}
    found = [
        f"{path.name} imports {module} at top level"
        for path in sorted(PROVIDERS.glob("*.py"))
        for module, eager in imports(path)
        if eager and module.split(".")[0] not in allowed
    ]
    assert not found, "\n".join(found)


def test_files_keep_their_size() -> None:
    limits = [
        (400, core_files()),
        (300, list(PROVIDERS.glob("*.py"))),
        (400, list((ROOT / "adapters").rglob("*.py"))),
        (400, list((ROOT / "tests").rglob("*.py"))),
        (100, [CORE / "cli" / f"{verb}.py" for verb in _verbs()]),
    ]
    found = [
        f"{path.relative_to(ROOT)}: {lines} lines, {limit} allowed"
        for limit, paths in limits
        for path in paths
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > limit
    ]
    assert not found, "\n".join(found)


def _verbs() -> list[str]:
    from openenv_sandbox.cli.main import VERBS

    return list(VERBS)


def test_only_the_command_line_prints() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in [*core_files(), *PROVIDERS.glob("*.py")]
        if "cli" not in path.parts
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert not found


def test_public_names_resolve_and_match_what_type_checkers_see() -> None:
    source = (CORE / "__init__.py").read_text(encoding="utf-8")
    seen = dict(re.findall(r"from openenv_sandbox\.([\w.]+) import (\w+) as \2", source))
    typed = {name: home for home, name in re.findall(r"from openenv_sandbox\.([\w.]+) import (\w+) as \2", source)}
    assert seen
    assert typed == openenv_sandbox._HOMES
    for name in openenv_sandbox.__all__:
        assert getattr(openenv_sandbox, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'launhc'"):
        _ = openenv_sandbox.launhc


def test_nothing_is_left_open_in_the_code() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError|pragma: no cover")
    here = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("openenv_sandbox", "providers", "adapters", "envs", "tests", "scripts", "benchmarks", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != here
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
        and not ("raise NotImplementedError" in line and str(path.relative_to(ROOT)) in REFUSES_BY_CONTRACT)
    ]
    assert not found, "\n".join(found)
