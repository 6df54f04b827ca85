"""Pages made from the code say what the code says, and every public name and error is on its page."""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import openenv_sandbox
from openenv_sandbox import errors
from openenv_sandbox.cli import older
from openenv_sandbox.cli.main import VERBS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["cli_docs", "api_docs", "interface_docs"])
def test_the_page_is_up_to_date(name: str) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / f"{name}.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_every_verb_is_on_its_page() -> None:
    headings = re.findall(r"(?m)^## openenv ([\w-]+)$", (DOCS / "reference" / "cli.md").read_text(encoding="utf-8"))
    assert [verb for verb in VERBS if verb not in headings] == []


def test_every_public_name_is_on_its_page() -> None:
    headings = re.findall(r"(?m)^### (\w+)$", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"))
    assert sorted(headings) == sorted(set(openenv_sandbox.__all__) - {"__version__"})


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"(?m): ([\w/-]+\.md)$", text.partition("nav:")[2]))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "envs/echo_env/README.md"])
def test_links_outside_the_site_lead_somewhere(page: str) -> None:
    """What lies in docs/ is checked by mkdocs."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_every_error_is_in_the_tree_with_its_remedy() -> None:
    """The tree of the page is the tree of the classes, and each error that is raised has a row that says what to do."""
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    block = re.search(r"(?s)```text\nOpenEnvError\n(.*?)```", page)
    assert block is not None
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, errors.OpenEnvError) and cls is not errors.OpenEnvError
    }
    drawn: dict[str, str] = {}
    above = ["OpenEnvError"]
    for line in block[1].splitlines():
        found = re.match(r"([ │├└─]*)(\w+)(?: \((\w+)\))?", line)
        assert found is not None
        depth = len(found[1]) // 4
        above[depth:] = [found[2]]
        drawn[found[2]] = above[depth - 1]
        if found[3]:
            assert issubclass(classes[found[2]], getattr(builtins, found[3])), line
    assert drawn == {name: cls.__bases__[0].__name__ for name, cls in classes.items()}
    rows = set(re.findall(r"(?m)^\| `(\w+)` \|", page.partition("## What to do")[2]))
    families = {cls.__bases__[0].__name__ for cls in classes.values()} - {"ExecError"}
    assert set(classes) - families - rows == set()
    assert rows <= set(classes)


def test_every_older_verb_and_flag_is_on_the_page_of_the_migration() -> None:
    page = (DOCS / "migration.md").read_text(encoding="utf-8")
    assert [verb for verb in older.VERBS if f"`openenv {verb}`" not in page] == []
    flags = [flag.split("/") for flags in older.FLAGS.values() for flag in flags]
    assert [spelt for spelt in flags if not any(f"`{flag}`" in page or f" {flag}`" in page for flag in spelt)] == []
