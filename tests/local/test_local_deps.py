"""Whether dependencies are at hand: decided without guessing."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openenv_providers import _local_deps as deps

if TYPE_CHECKING:
    from pathlib import Path

SITE = os.path.realpath(str(metadata.distribution("pydantic").locate_file("")))


@pytest.mark.parametrize(
    ("version", "clauses", "expected"),
    [
        ("2.0", "", True),
        ("2.0", ">=1,<3", True),
        ("2.0", "<2", False),
        ("2.0.0", "==2", True),
        ("2.0.1", "==2", False),
        ("2.1.9", "==2.1.*", True),
        ("2.10", "==2.1.*", False),
        ("2.10", "!=2.1.*", True),
        ("1.4.5", "~=1.4.2", True),
        ("1.5", "~=1.4.2", False),
        ("1.5", "~=1.4", True),
        ("10.0", ">9", True),
        ("2.0.post1", ">=2.0", True),
        ("2.0+cu118", "==2.0", True),
        ("2.0rc1", ">=1", False),
        ("2.0.dev1", "", False),
    ],
)
def test_versions(version: str, clauses: str, expected: bool) -> None:
    """Numbers are compared as numbers, padded; a pre-release is never enough.

    Mutation: versions are compared as texts
    """
    assert deps.matches(version, clauses) is expected


@pytest.mark.parametrize("clauses", [">=1.0rc1", "===1.0", ">=1!2.0", "banana", ">1.*"])
def test_clauses_that_are_not_understood(clauses: str) -> None:
    with pytest.raises(ValueError, match=r"clause"):
        deps.matches("1.0", clauses)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_order_is_total(left: list[int], right: list[int]) -> None:
    a, b = ".".join(map(str, left)), ".".join(map(str, right))
    assert [deps.matches(a, f"{operator}{b}") for operator in ("<", "==", ">")].count(True) == 1


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("python_version >= '3.10'", True),
        ('python_version < "3.10"', False),
        ("'3.10' <= python_version", True),
        (f"sys_platform == '{sys.platform}' and python_version > '3'", True),
        ("sys_platform == 'win32' or (os_name == 'posix' and implementation_name == 'cpython')", os.name == "posix"),
        ("extra == 'Co_re'", True),
        ("extra == 'other' or 'x' in 'xyz'", True),
        ("'linux' not in sys_platform", not sys.platform.startswith("linux")),
    ],
)
def test_markers(marker: str, expected: bool) -> None:
    assert deps.applies(marker, extra="co-re") is expected


@pytest.mark.parametrize(
    "marker", ["mood == 'good'", "python_version >=", "extra ~ 'x'", "sys_platform < 'x'", "os_name == 'a' b"]
)
def test_markers_that_are_not_understood(marker: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|ends early"):
        deps.applies(marker)


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("pydantic>=2", ""),
        ("Pydantic [email] >= 2 ; python_version < '3'", ""),
        ("openenv-core[docker]>=0.2", ""),
        ("openenv>=99", "openenv>=99 is wanted"),
        ("no-such-thing-at-all", "is not installed"),
        ("pydantic @ https://example.org/p.whl", "not understood"),
        ("pydantic>=2; mood == 'x'", "not understood"),
        ("./local/path", "not understood"),
    ],
)
def test_what_is_missing(requirement: str, reason: str) -> None:
    """What is not understood is missing; the older name of ours is ours; extras are looked into.

    Mutation: `missing` lets what it does not understand pass
    """
    found = deps.missing([requirement], within=[SITE])
    assert reason in found if reason else found == ""


def test_an_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requirements of an extra count, those of others do not.

    Mutation: `_of_extra` is not asked
    """
    distribution(tmp_path, "thing", requires=['absent-one>1; extra == "more"', "pydantic>=2; extra == 'some'"])
    monkeypatch.syspath_prepend(tmp_path)
    within = [SITE, str(tmp_path)]
    assert deps.missing(["thing[some]"], within=within) == ""
    assert "absent-one" in deps.missing(["thing[some,more]"], within=within)


def test_what_a_sandbox_would_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution elsewhere, or an editable one, is not at hand."""
    distribution(tmp_path, "thing")
    monkeypatch.syspath_prepend(tmp_path)
    assert deps.missing(["thing"], within=[str(tmp_path)]) == ""
    assert "outside" in deps.missing(["thing"], within=[SITE])
    editable = json.dumps({"url": "file:///x", "dir_info": {"editable": True}})
    (tmp_path / "thing-1.0.dist-info" / "direct_url.json").write_text(editable)
    assert "outside" in deps.missing(["thing"], within=[str(tmp_path)])


def distribution(root: Path, name: str, *, requires: list[str] | None = None) -> None:
    info = root / f"{name}-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires or [])]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
