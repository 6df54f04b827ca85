"""Makes docs/scenarios.md from tests/scenarios.toml and test docstrings: scenarios.py [--check].

A test claims a scenario by two lines in its docstring:

    Scenario: C03
    Mutation: what change of the code turns this test red
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scenarios.md"
HEAD = """# Scenarios

What breaks for people who run environments in sandboxes, the test that shows it does not break here, and the change of
the code that turns the test red. Made by `scripts/scenarios.py`; an id without a test or a reason fails the test suite.

| id | what breaks | test | mutation it catches |
|---|---|---|---|
"""


def wanted() -> dict[str, dict[str, str]]:
    """Every scenario id with what breaks and, perhaps, why it has no test."""
    with (ROOT / "tests" / "scenarios.toml").open("rb") as file:
        return tomllib.load(file)


def claims() -> dict[str, list[tuple[str, str]]]:
    """For each id the tests that claim it, each with its mutation."""
    found: dict[str, list[tuple[str, str]]] = {}
    files = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "openenv_sandbox" / "testing").rglob("*.py"))]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not node.name.startswith("test"):
                continue
            text = ast.get_docstring(node) or ""
            ids = re.findall(r"^\s*Scenarios?:\s*(.+)$", text, re.MULTILINE)
            mutation = re.search(r"^\s*Mutation:\s*(.+?)(?:\n\s*\n|\n\s*Scenario|\Z)", text, re.MULTILINE | re.DOTALL)
            for identifier in re.findall(r"[A-N]\d\d", " ".join(ids)):
                words = " ".join(mutation.group(1).split()) if mutation else ""
                found.setdefault(identifier, []).append((f"{path.relative_to(ROOT)}::{node.name}", words))
    return found


def problems() -> list[str]:
    """What keeps the page from being true."""
    scenarios, tests = wanted(), claims()
    lines = [
        f"{identifier} has neither test nor reason"
        for identifier, entry in scenarios.items()
        if identifier not in tests and not entry.get("exempt")
    ]
    lines += [f"{identifier} is claimed by a test but unknown" for identifier in tests if identifier not in scenarios]
    lines += [
        f"{name} claims {identifier} without a mutation"
        for identifier, rows in tests.items()
        for name, mutation in rows
        if not mutation
    ]
    return lines


def page() -> str:
    """The page."""
    tests = claims()
    rows = []
    for identifier, entry in wanted().items():
        for name, mutation in sorted(tests.get(identifier, [("-", entry.get("exempt", ""))])):
            cells = (identifier, entry["what"], f"`{name}`" if name != "-" else name, mutation)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    bad = problems()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            bad.append("docs/scenarios.md is stale: run scripts/scenarios.py")
    else:
        PAGE.write_text(page(), encoding="utf-8")
    if bad:
        sys.exit("\n".join(bad))
