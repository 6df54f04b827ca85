"""The extras of the distribution: every backend's own, what `all` brings, and that none lets an old SDK in."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from openenv_sandbox import registry

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
TOGETHER = {"all", "dev", "dev-clouds"}


def project() -> dict[str, Any]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return table


def test_every_backend_has_its_extra() -> None:
    """A backend's install line names an extra that exists, that `all` contains, and that the clouds' tests install.

    Mutation: name an extra in a provider and forget it in pyproject.toml
    """
    extras = project()["optional-dependencies"]
    wanted = {entry.cls.extra for entry in registry.entries() if entry.distribution == "openenv" and entry.cls}
    wanted -= {None}
    assert wanted <= set(extras)
    together = re.findall(r"[a-z0-9-]+", ",".join(re.findall(r"openenv\[(.*?)\]", str(extras["all"]))))
    assert wanted <= set(together)


def test_every_sdk_has_a_lower_bound() -> None:
    """Without one a resolver silently takes an SDK of years ago.

    Scenario: H07
    Mutation: daytona>=0.226.1 becomes daytona
    """
    for name, requirements in project()["optional-dependencies"].items():
        if name in TOGETHER:
            continue
        for requirement in requirements:
            assert re.match(r"[A-Za-z0-9._-]+>=\d", requirement), f"{name}: {requirement}"


def test_light_development_needs_no_sdk_of_a_cloud() -> None:
    """The wire is tested on further Pythons, where installing every cloud would take minutes.

    Mutation: the clouds move into `dev`
    """
    extras = project()["optional-dependencies"]
    clouds = set(re.findall(r"[a-z0-9-]+", re.findall(r"\[(.*?)\]", extras["dev-clouds"][0])[0]))
    assert {"aca", "daytona", "e2b", "modal", "novita"} <= clouds
    assert not any(re.search(rf"\b{cloud}\b", line) for line in extras["dev"] for cloud in clouds)
