"""The pages of the backends say what the code says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from openenv_sandbox import registry
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import Verified

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "backend_docs.py"


@pytest.fixture(scope="module")
def made() -> Any:
    spec = importlib.util.spec_from_file_location("backend_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_every_backend_has_a_page_in_the_navigation(made: Any) -> None:
    (pages,) = (
        next(iter(entry.values()))
        for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
        if "Backends" in entry
    )
    there = {next(iter(page.values())) for page in pages}
    assert {f"backends/{name}.md" for name in made.backends()} <= there
    assert "backends/index.md" in there


class Options(ProviderOptions):
    """Of a test.

    Attributes:
        size: How large,
            in metres.
    """

    url: str = trusted("http://x", description="Where.")
    size: Literal["s", "m"] | None = None
    rest: dict[str, tuple[int, ...]]


def test_options_are_told_with_type_default_and_trust(made: Any) -> None:
    cls = type("P", (registry.get("local"),), {"Options": Options, "name": "use-it"})
    lines = made.options(cls).splitlines()
    assert lines[2:5] == [
        "| `url` | `str` | `'http://x'` | Where. *Trusted.* |",
        '| `size` | `"s" \\| "m" \\| None` | `None` | How large, in metres. |',
        "| `rest` | `dict[str, tuple[int, ...]]` | required |  |",
    ]
    assert "`OPENENV_PROVIDERS__USE_IT__URL`" in lines[-1]


def test_a_page_without_markers_is_refused(made: Any) -> None:
    with pytest.raises(ValueError, match=r"local\.md lacks the lines"):
        made.page("# local\n", registry.get("local"))


def test_what_was_not_run_is_not_called_verified(made: Any) -> None:
    cls = type("P", (registry.get("local"),), {"name": "never-run", "verified": Verified("live", sdk="x 1")})
    assert made.verified(cls).startswith("**Not verified")


def test_what_a_run_proves_is_said(made: Any) -> None:
    ran = json.loads((ROOT / "docs" / "verified.json").read_text())["backends"]["docker"]
    text = made.verified(registry.get("docker"))
    assert f"**{ran['how']}**, {ran['sdk']}, {ran['date']}, commit {ran['commit']}" in text
    assert made.PROVES[ran["how"]] in text
