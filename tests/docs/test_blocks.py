"""Every code block of the README and the docs runs, or says why not."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sybil import Region, Sybil

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sybil import Document, Example

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "envs").glob("*/README.md")])
FENCE = re.compile(
    r"(?m)^(?P<skip><!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```\s*$", re.DOTALL
)
# Languages that hold no program; everything else must run or carry a reason.
PLAIN = {"text", "json", "yaml", "toml", "dockerfile", "ini"}
pytestmark = [pytest.mark.filterwarnings("default::ResourceWarning")]


def parse(document: Document) -> Iterable[Region]:
    """One region for each fenced block that is to run."""
    for match in FENCE.finditer(document.text):
        if match["language"] not in PLAIN and not match["skip"]:
            yield Region(match.start(), match.end(), (match["language"], textwrap.dedent(match["body"])), evaluate)


def evaluate(example: Example) -> None:
    """Run one block; Python blocks of a page share a namespace and may await at top level."""
    language, body = example.parsed
    if language == "python":
        run_python(body, example.namespace, f"{example.path}:{example.line}")
    elif language in {"bash", "sh"}:
        run_shell(body)
    else:
        raise AssertionError(f"{example.path}:{example.line}: no way to run {language or 'a block without language'!r}")


def run_python(body: str, namespace: dict[str, Any], name: str) -> None:
    if "__loop__" not in namespace:
        namespace["__loop__"] = asyncio.new_event_loop()
    loop = namespace["__loop__"]
    code = compile(body, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run_until_complete(asyncio.wait_for(eval(code, namespace), 120))
    else:
        exec(code, namespace)


def run_shell(body: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", body], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180
    )
    assert run.returncode == 0, f"{body}\n{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    document = Sybil(parsers=[parse], patterns=[page.name]).parse(page)
    try:
        for example in document.examples():
            example.evaluate()
    finally:
        loop = document.namespace.pop("__loop__", None)
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_is_left_out(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    assert len(re.findall(r"(?m)^```\w*[^\n]*$", text)) == 2 * len(blocks), "a fence is not closed or is nested"
    unknown = [m["language"] for m in blocks if not m["skip"] and m["language"] not in PLAIN | {"python", "bash", "sh"}]
    assert not unknown
    assert all(len(m["why"].split()) >= 2 for m in blocks if m["skip"]), "an exemption needs a reason"


def test_there_are_blocks_to_run() -> None:
    counted = sum(
        m["language"] in {"python", "bash", "sh"} and not m["skip"]
        for page in PAGES
        for m in FENCE.finditer(page.read_text(encoding="utf-8"))
    )
    assert counted >= 15


def test_a_block_that_fails_is_noticed() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(ZeroDivisionError):
        run_python("import asyncio\nawait asyncio.sleep(0)\n1 / 0\n", {"__loop__": loop}, "page")
    loop.close()
    with pytest.raises(AssertionError):
        run_shell("false")
