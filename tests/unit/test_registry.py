from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import registry
from openenv_sandbox.errors import ProviderError, UnknownProvider
from openenv_sandbox.testing.fake import FakeProvider
from tests.unit import plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _found_again() -> Iterator[None]:
    yield
    registry.refresh()


def entry(name: str, distribution: str) -> registry.ProviderEntry:
    return next(e for e in registry.entries() if (e.name, e.distribution) == (name, distribution))


def test_a_plugin_of_somebody_else_is_listed_like_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugins.install_acme(monkeypatch, tmp_path)
    info = next(info for info in registry.providers() if info.name == "acme")
    assert (info.title, info.distribution, info.broken, info.installed) == ("Acme", "acme-sandboxes", "", True)
    assert info.check.reason == "no address"
    assert info.verified is not None
    assert info.verified.how == "emulator"
    assert registry.get("acme").title == "Acme"


def test_a_broken_plugin_breaks_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugins.install_acme(monkeypatch, tmp_path)
    broken = entry("acme-broken", "acme-sandboxes")
    assert broken.cls is None
    assert "a_module_that_nobody_has" in broken.broken
    info = next(info for info in registry.providers() if info.name == "acme-broken")
    assert (info.check.ready, info.capabilities) == (False, None)
    assert "acme-broken" not in registry.names()
    with pytest.raises(ProviderError, match="a_module_that_nobody_has"):
        registry.get("acme-broken")


def test_our_names_stay_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugins.install_acme(monkeypatch, tmp_path)
    thief = entry("docker", "acme-sandboxes")
    assert "reserved" in thief.broken
    assert not any(e.cls is not None and e.cls.title == "Acme" for e in registry.entries() if e.name == "docker")


@pytest.mark.parametrize("name", ["modal", "k8s", "apptainer"])
def test_names_not_built_yet_and_aliases_are_reserved_too(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugins.install(
        monkeypatch, tmp_path, "thief", {name: "acme_sandboxes.good:AcmeProvider"}, plugins.PLUGINS / "acme"
    )
    assert "reserved" in entry(name, "thief").broken


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("exits:Provider", "SystemExit"),
        ("nothing:Provider", "import failed"),
        ("notone:Provider", "not a SandboxProvider class"),
        ("abstract:Provider", "leaves out"),
        ("other:Provider", "calls itself 'fake'"),
    ],
)
def test_every_way_to_be_broken_is_named(
    target: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "notone.py").write_text("Provider = int\n")
    (tmp_path / "abstract.py").write_text(
        "from openenv_sandbox.provider import SandboxProvider\nclass Provider(SandboxProvider):\n    name = 'odd'\n"
    )
    (tmp_path / "other.py").write_text("from openenv_sandbox.testing.fake import FakeProvider as Provider\n")
    plugins.install(monkeypatch, tmp_path, "odd-one", {"odd": target})
    assert reason in entry("odd", "odd-one").broken
    for module in ("exits", "nothing", "notone", "abstract", "other"):
        sys.modules.pop(module, None)


def test_of_two_who_claim_a_name_the_first_by_distribution_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = {"acme": "acme_sandboxes.good:AcmeProvider"}
    plugins.install(monkeypatch, tmp_path / "2", "b-dist", target, plugins.PLUGINS / "acme")
    plugins.install(monkeypatch, tmp_path / "1", "a-dist", target)
    assert entry("acme", "a-dist").broken == ""
    assert entry("acme", "b-dist").broken == "the name 'acme' is already taken by a-dist"
    monkeypatch.setattr(sys, "path", sys.path[::-1])
    assert entry("acme", "b-dist").broken


def test_a_name_that_is_no_name_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugins.install(monkeypatch, tmp_path, "odd-one", {"Odd_One": "x:Y"})
    assert "no name for a backend" in entry("Odd_One", "odd-one").broken


def test_unknown_names_come_with_the_nearest() -> None:
    with registry.registered(FakeProvider):
        with pytest.raises(UnknownProvider, match="did you mean 'fake'"):
            registry.get("fakke")
        assert registry.get("fake") is FakeProvider
    with pytest.raises(UnknownProvider, match="'use-computer' is not in this version"):
        registry.get("use-computer")
    with pytest.raises(UnknownProvider, match="'singularity' is not in this version"):
        registry.get("apptainer")
    with pytest.raises(UnknownProvider):
        registry.get("fake")


def test_listing_loads_no_sdk(tmp_path: Path) -> None:
    """Every backend is described without importing what it needs, and without the network."""
    script = """
import json, socket, sys
def refuse(*a, **k): raise AssertionError("network")
socket.getaddrinfo = refuse
import openenv_sandbox
infos = openenv_sandbox.providers()
heavy = {"docker", "requests", "urllib3", "httpx", "fastapi", "grpc", "kubernetes", "uvicorn"}
print(json.dumps([sorted(heavy & set(sys.modules)), [info.name for info in infos]]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert run.returncode == 0, run.stderr
    loaded, names = json.loads(run.stdout)
    assert loaded == []
    assert {"docker", "local"} <= set(names)


def test_a_check_that_raises_is_a_reason() -> None:
    class Rude(FakeProvider):
        name = "rude"
        env_vars = ("RUDE_TOKEN",)

        @classmethod
        def check(cls, options: object = None) -> object:  # type: ignore[override]
            raise RuntimeError("no")

    with registry.registered(Rude):
        info = next(info for info in registry.providers() if info.name == "rude")
    assert info.check.reason == "check() itself failed: RuntimeError"
    assert info.credentials is False


def test_credentials_and_sdk_are_looked_for_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(FakeProvider):
        name = "needy"
        env_vars = ("NEEDY_TOKEN",)
        sdk = ("a_module_that_nobody_has.sub",)
        extra = "needy"

    monkeypatch.setenv("NEEDY_TOKEN", "x")
    with registry.registered(Needy):
        info = next(info for info in registry.providers() if info.name == "needy")
        assert (info.installed, info.credentials) == (False, True)
        missing = registry.extra_missing("needy")
    assert missing is not None
    assert missing.hint == "pip install 'openenv[needy]'"
