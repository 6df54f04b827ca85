"""Environments by name: what is found without importing it, which class a name gives, and what it starts."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from openenv import AutoAction, AutoEnv
from openenv.auto import _discovery
from openenv.core import GenericAction, GenericEnvClient
from openenv_adapters.containers.providers import LaunchedContainer

from openenv_sandbox.client import launched
from openenv_sandbox.errors import ConfigError, TrustError
from openenv_sandbox.testing import FakeCloud
from tests.adapters.served import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAIN = """
from openenv.core import GenericEnvClient

class PlainEnv(GenericEnvClient):
    pass
"""


def installed(site: Path, package: str, distribution: str, files: dict[str, str] | None = None) -> None:
    """A package as an installer leaves it."""
    folder = site / package
    if files is None:
        shutil.copytree(PACKAGES / package, folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    info = site / f"{distribution.replace('-', '_')}-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.3\n")
    paths = [path.relative_to(site).as_posix() for path in (*folder.rglob("*"), info / "METADATA") if path.is_file()]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in paths))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, "lantern_env", "openenv-lantern-env")
    installed(tmp_path, "rolls_env", "openenv-rolls-env")
    broken = "raise SystemExit('this package was imported')\n"
    plain = {"__init__.py": "", "client.py": PLAIN, "openenv.yaml": "name: plain\ndescription: A plain one\nport: 1\n"}
    installed(tmp_path, "plain_env", "my-game", plain)
    installed(tmp_path, "loud_env", "openenv-loud-env", {"__init__.py": broken, "client.py": broken + PLAIN})
    installed(tmp_path, "torn_env", "openenv-torn-env", {"client.py": "", "openenv.yaml": "name: [1]\n"})
    (tmp_path / "ghost-1.0.dist-info").mkdir()  # what an interrupted uninstall leaves
    installed(tmp_path, "openenv_tool", "openenv-tool", {"client.py": PLAIN})
    _discovery.reset_discovery()
    yield tmp_path
    _discovery.reset_discovery()
    for name in set(sys.modules) - before:
        if name.partition(".")[0].endswith("_env"):
            del sys.modules[name]


def test_what_is_installed_is_read_and_not_imported(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By openenv.yaml, or by the name of the distribution; a broken one hides no other.

    Mutation: import the package to find its classes; let a malformed openenv.yaml raise
    """
    before = set(sys.modules)
    found = _discovery.get_discovery().discover()
    assert {"lantern", "rolls", "plain", "loud"} <= set(found)
    assert not {"torn", "openenv_tool", "tool"} & set(found)
    assert not {name for name in set(sys.modules) - before if "_env" in name}
    assert AutoEnv.get_env_info("lantern") == {
        "env_key": "lantern",
        "name": "lantern_env",
        "package": "openenv-lantern-env",
        "version": "0.3",
        "description": "lantern_env environment",
        "env_class": "LanternEnv",
        "action_class": "LanternAction",
        "observation_class": "LanternObservation",
        "module": "lantern_env.client",
        "default_image": "lantern-env:latest",
        "spec_version": 1,
    }
    assert AutoEnv.get_env_info("plain")["description"] == "A plain one"
    assert AutoAction.get_action_info("rolls")["action_class"] == "CallToolAction"
    AutoEnv.list_environments()
    AutoAction.list_actions()
    out = capsys.readouterr().out
    assert "openenv-lantern-env" in out
    assert "LanternAction" in out


@pytest.mark.parametrize("name", ["lantern", "lantern-env", "lantern_env", "Lantern", " LANTERN-ENV "])
def test_a_name_in_every_form(site: Path, name: str) -> None:
    assert AutoEnv.get_env_class(name).__name__ == "LanternEnv"
    assert AutoAction.from_env(name).__name__ == "LanternAction"


def test_classes(site: Path) -> None:
    """Those that the package exports; the client knows its address and connects when it is used."""
    from openenv.core.env_server.mcp_types import CallToolAction

    assert AutoAction.from_env("rolls") is CallToolAction
    client = AutoEnv.from_env("lantern", base_url="http://127.0.0.1:9", message_timeout_s=3)
    assert (type(client).__name__, client.base_url) == ("LanternEnv", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"Unknown environment 'lantren'; did you mean 'lantern'") as caught:
        AutoEnv.from_env("lantren")
    assert "plain" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="has no class PlainAction"):
        AutoAction.from_env("plain")
    for made in (AutoEnv, AutoAction):
        with pytest.raises(TypeError, match="no instances"):
            made()


def test_it_is_found_again_only_when_asked(site: Path) -> None:
    assert _discovery.get_discovery().get_environment_by_name("late") is None
    installed(site, "late_env", "late", {"openenv.yaml": "name: late\n"})
    assert _discovery.get_discovery().get_environment("late") is None
    assert "late" in _discovery.get_discovery().discover(use_cache=False)


def test_a_server_starts_with_the_first_call_and_ends_with_the_client(site: Path) -> None:
    """By the caller's own provider, with the arguments of the start.

    Mutation: start it in from_env; leave it running at close
    """
    with FakeCloud() as cloud:
        provider = LaunchedContainer(cloud.provider(), {"address": cloud.address})
        given: dict[str, Any] = {"docker_image": "fake-env:1", "env_vars": {"A": "b"}, "message_timeout_s": 20}
        env = AutoEnv.from_env("plain", container_provider=provider, **given, labels={"team": "a"})
        assert not cloud.boxes
        with env.sync() as client:
            assert client.reset().done is False
            (box,) = cloud.boxes.values()
            assert (box.args["env"]["A"], box.args["labels"]["team"]) == ("b", "a")
        assert not cloud.boxes


def test_the_docker_backend_by_default(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package's image; the timeout is that of readiness."""
    seen: list[Any] = []

    class Told:
        def __init__(self, backend: str) -> None:
            seen.append(backend)

        def start(self, image: str, **fields: Any) -> str:
            seen.append((image, fields))
            raise RuntimeError("enough")

        def stop(self) -> None:
            seen.append("stop")

    monkeypatch.setattr(launched, "Launched", Told)
    with pytest.raises(RuntimeError, match="enough"):
        AutoEnv.from_env("plain", wait_timeout=7, env_vars={"A": "b"}).sync().connect()
    fields = {"env": {"A": "b"}, "timeouts": {"ready": 7}, "trust": None}
    assert seen == ["docker", ("plain-env:latest", fields), "stop"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("org/space", "hf://org/space"),
        ("https://huggingface.co/spaces/org/space", "hf://org/space"),
        ("huggingface.co/org/space/", "hf://org/space"),
        ("hf://org/space@v1", "hf://org/space@v1"),
        ("git+https://h.example/a", "git+https://h.example/a"),
    ],
)
def test_names_of_the_hub(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never installed without a word; the word is asked for before anything is asked of the hub.

    Mutation: assume trust for the hub
    """
    from openenv_sandbox import fetching
    from openenv_sandbox.auto.discovery import hub_source

    assert hub_source(name) == source
    monkeypatch.setattr(fetching, "fetch", lambda *args, **kwargs: pytest.fail("something was fetched"))
    monkeypatch.setenv("OPENENV_TRUST_REMOTE_CODE", "0")
    for call in (AutoEnv.from_env, AutoEnv.from_hub, AutoAction.from_env, AutoAction.from_hub):
        with pytest.raises(TrustError, match="vouched") as caught:
            call(name)
        assert "trust_remote_code=True" in str(caught.value.hint)


def test_without_installing() -> None:
    """Nothing of the hub runs in this process, so nobody has to vouch for it."""
    assert AutoAction.from_hub("org/space", skip_install=True) is GenericAction
    client = AutoEnv.from_hub("Org/Space", skip_install=True, base_url="http://127.0.0.1:9")
    assert type(client) is GenericEnvClient
    started = AutoEnv.from_hub("Org/Space", skip_install=True)
    assert started._provider.image == "registry.hf.space/org-space:latest"
    with pytest.raises(ConfigError, match="publishes an image"):
        AutoEnv.from_env("git+https://h.example/a", skip_install=True)
