"""What an import costs, counted in modules, never in seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pydantic", "fastapi", "starlette", "uvicorn", "httpx", "docker", "rich", "numpy", "websockets", "anyio")

PROBE = """
import sys, threading, os, signal
before = dict(os.environ), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], threading.active_count()
{statement}
after = dict(os.environ), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], threading.active_count()
assert before == after, "an import changed the process"
loaded = sorted({{m.split('.')[0] for m in sys.modules}})
print(len(sys.modules), ' '.join(loaded))
"""


def loaded_by(statement: str) -> tuple[int, set[str]]:
    """How many modules a fresh interpreter has after ``statement``, and their top-level names."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    count, *names = run.stdout.split()
    return int(count), set(names)


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import openenv_sandbox", ()),
        ("from openenv_sandbox.cli.main import run", ()),
        ("from openenv_sandbox import SandboxSpec", ("pydantic",)),
        ("from openenv_sandbox import OpenEnvError, Capabilities", ()),
        ("from openenv_sandbox.server import Action, Environment, Observation", ("pydantic", "anyio")),
    ],
)
def test_an_import_loads_nothing_heavy_and_changes_nothing(statement: str, allowed: tuple[str, ...]) -> None:
    _, names = loaded_by(statement)
    assert not names & (set(HEAVY) - set(allowed))


def test_importing_the_package_is_small() -> None:
    bare, _ = loaded_by("import typing")
    ours, _ = loaded_by("import openenv_sandbox")
    assert ours - bare <= 3


HELP = """
import io, sys
from openenv_sandbox.cli.main import run
screen, sys.stdout = sys.stdout, io.StringIO()
assert run(["--help"]) == 0
sys.stdout = screen
"""


def test_help_loads_no_more_than_click_needs() -> None:
    bare, _ = loaded_by("import click, json, logging, traceback")
    ours, names = loaded_by(HELP)
    assert not names & set(HEAVY)
    assert ours - bare <= 20
