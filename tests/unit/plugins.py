"""Installs the plugin distributions under tests/plugins for one test, as an installer would leave them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import registry

if TYPE_CHECKING:
    import pytest

PLUGINS = Path(__file__).parents[1] / "plugins"


def project(name: str) -> dict[str, Any]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    data: dict[str, Any] = tomllib.loads((PLUGINS / name / "pyproject.toml").read_text())["project"]
    return data


def install(
    monkeypatch: pytest.MonkeyPatch, site: Path, dist: str, points: dict[str, str], source: Path | None = None
) -> None:
    """A ``dist-info`` folder with the entry points, on the path for the time of the test."""
    info = site / f"{dist.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]))
    for folder in (site, source):
        if folder is not None and str(folder) not in sys.path:
            monkeypatch.syspath_prepend(str(folder))
    registry.refresh()


def install_acme(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    facts = project("acme")
    install(monkeypatch, site, facts["name"], facts["entry-points"][registry.GROUP], PLUGINS / "acme")
