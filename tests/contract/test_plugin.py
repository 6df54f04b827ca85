"""The pytest plugin: what it counts, and that it costs nothing before it is used."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from openenv_sandbox.testing import FakeCloud, ProviderCase

if TYPE_CHECKING:
    from pathlib import Path

THIRD_PARTY = """
import pytest
from openenv_sandbox.testing import ProviderCase, ProviderContract

class TestTheirs(ProviderContract):
    @pytest.fixture
    def provider_case(self, openenv_fake):
        return ProviderCase(openenv_fake.provider(user=False), action={"message": "hi"}, skip={"test_scope": "no need"})
"""


def test_third_party(tmp_path: Path) -> None:
    """A third party needs one fixture; the summary says what ran, what is not declared, has no hook, or is declined."""
    (tmp_path / "test_theirs.py").write_text(THIRD_PARTY)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    names = "test_scope or test_raw_user or test_raw_exit_code or test_list_breaks_off"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TestTheirs: 3 passed, 0 failed" in done.stdout
    assert "not declared: exec.user\n" in done.stdout
    assert "no hook in the case: fault injection\n" in done.stdout
    assert "declined: test_scope (no need)" in done.stdout


def test_light() -> None:
    """Every pytest run of the environment loads the plugin: it brings in nothing but pytest."""
    code = "import openenv_sandbox.testing.plugin, sys; print(*[m for m in sys.modules if m.split('.')[0] in sys.argv])"
    heavy = ["pydantic", "fastapi", "httpx", "anyio", "docker", "websockets"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_fixture(openenv_fake: FakeCloud) -> None:
    """The fixture is a cloud of the test's own."""
    assert openenv_fake.live() == []
    assert ProviderCase(openenv_fake.provider()).make_spec(port=1).port == 1


def test_launched_for_a_test(tmp_path: Path) -> None:
    """`openenv_env` launches and connects, and removes everything whether the test passes or fails.

    Mutation: leave closing to the test
    """
    with FakeCloud() as cloud:
        (tmp_path / "test_theirs.py").write_text(
            "from openenv_sandbox.testing.fake import FakeProvider\n"
            "def start(openenv_env):\n"
            f"    return openenv_env('fake-env:1', provider=FakeProvider, options={{'address': {cloud.address!r}}})\n"
            "def test_passes(openenv_env):\n"
            "    env, other = start(openenv_env), start(openenv_env)\n"
            "    assert env.reset().done is False and other.sandbox.ref != env.sandbox.ref\n"
            "def test_fails(openenv_env):\n"
            "    start(openenv_env)\n"
            "    assert False\n"
        )
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
        assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
        assert cloud.count("create") == 3
        assert not cloud.boxes


def test_base_class_alone() -> None:
    """Without its fixture the suite says what is missing."""
    from openenv_sandbox.testing.case import ContractBase

    with pytest.raises(pytest.UsageError, match="provider_case"):
        ContractBase.provider_case.__wrapped__(ContractBase())  # type: ignore[attr-defined]
