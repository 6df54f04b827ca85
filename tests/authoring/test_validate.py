"""``openenv validate``: good environments pass, and each known-bad one fails by its own criterion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.authoring.checks import Report, validate_folder, validate_url
from openenv_sandbox.authoring.checks.actions import example
from openenv_sandbox.authoring.scaffold import scaffold
from openenv_sandbox.cli.main import run
from tests.wire.serving import ROOT, serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

STATIC = {
    "no-manifest": ("manifest", "openenv.yaml", None),
    "no-app": ("manifest", "openenv.yaml", "name: bad_env\nport: 8000\n"),
    "no-script": ("entry-point", "pyproject.toml", ("[project.scripts]", "[project.other]")),
    "wrong-app-path": ("app", "pyproject.toml", ("bad_env.server.app:main", "bad_env.server.nothing:main")),
    "no-main": ("app", "server/app.py", ("def main(", "def start(")),
    "unparsable": ("app", "server/app.py", "def main(:\n"),
    "undeclared": ("dependency", "pyproject.toml", ('dependencies = ["openenv', 'dependencies = ["other')),
    "no-command": ("dockerfile", "Dockerfile", ("CMD [", "# CMD [")),
    "no-dockerfile": ("dockerfile", "Dockerfile", None),
}

RESET = "        self._secret = random.Random(seed).randint(1, 100)\n"
STEP = "        self._state.step_count += 1\n"
INIT = "        self._secret = 0\n"
RUNTIME = {
    "does-not-start": ("start", "import random\n", "import no_such_module_of_anybody\nimport random\n"),
    "raises-at-reset": ("reset", RESET, "        raise ValueError('no board')\n"),
    "raises-at-step": ("step", STEP, "        raise ValueError('no move')\n"),
    "unserialisable": ("serialisation", STEP, f"{STEP}\n"),
    "seed-ignored": ("seed", "random.Random(seed).randint(1, 100)", "random.Random().randint(1, 10**9)"),
    "shared-state": ("concurrency", "        self._state.step_count += 1\n", "        SHARED.append(1)\n"),
    "capacity-lie": ("capacity", INIT, f"{INIT}        assert len(ALIVE) < 3, 'full'\n        ALIVE.append(self)\n"),
    "blocks-the-loop": ("event-loop", "    def reset(self", "    BLOCKING = False\n\n    def reset(self"),
    "leaks": ("close", INIT, f"{INIT}        KEPT.append(open(__file__))\n"),
}
MORE = {
    "seed-ignored": (("guesses_left=GUESSES)", "guesses_left=self._secret)"),),
    "unserialisable": (
        ("            hint=hint,\n", "            hint=hint,\n            metadata={'x': object()},\n"),
    ),
    "shared-state": (
        ("GUESSES = 7\n", "GUESSES = 7\nSHARED: list[int] = []\n"),
        ("self._state.step_count\n        correct", "len(SHARED)\n        correct"),
        (RESET, f"{RESET}        SHARED.clear()\n"),
    ),
    "capacity-lie": (
        ("GUESSES = 7\n", "GUESSES = 7\nALIVE: list[object] = []\n"),
        ("    @property\n", "    def close(self) -> None:\n        ALIVE.remove(self)\n\n    @property\n"),
    ),
    "blocks-the-loop": ((RESET, f"{RESET}        import time\n        time.sleep(1.5)\n"),),
    "leaks": (("GUESSES = 7\n", "GUESSES = 7\nKEPT: list[object] = []\n"),),
}


def failures(report: Report) -> list[str]:
    return [one.id for one in report.criteria if one.passed is False and one.required]


@pytest.mark.parametrize("case", STATIC)
async def test_files_that_are_wrong(case: str, tmp_path: Path) -> None:
    """Each mistake fails by the criterion that is about it."""
    criterion, name, change = STATIC[case]
    folder = scaffold("bad_env", tmp_path)
    assert failures(await validate_folder(folder, run=False)) == []
    file = folder / name
    if change is None:
        file.unlink()
    elif isinstance(change, str):
        file.write_text(change)
    else:
        assert change[0] in file.read_text()
        file.write_text(file.read_text().replace(*change))
    assert criterion in failures(await validate_folder(folder, run=False))


@pytest.mark.full
@pytest.mark.parametrize("case", RUNTIME)
async def test_servers_that_are_wrong(case: str, tmp_path: Path) -> None:
    """Each misbehaviour fails by the criterion that is about it, and by no other that it does not follow from.

    Mutation: leave out any one of the runtime checks
    """
    criterion, *first = RUNTIME[case]
    folder = scaffold("bad_env", tmp_path)
    file = folder / "server" / "environment.py"
    text = file.read_text()
    for old, new in (tuple(first), *MORE.get(case, ())):
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
    report = await validate_folder(folder, provider="local")
    assert not report.passed
    assert failures(report) == [criterion], report.to_dict()["criteria"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["echo_env", "coding_env", "plain", "tools"])
async def test_environments_that_are_right(name: str, tmp_path: Path) -> None:
    """Ours, and those that init writes: nothing required fails, and everything was looked at."""
    folder = ROOT / "envs" / name if name.endswith("_env") else scaffold("new_env", tmp_path, tools=name == "tools")
    report = await validate_folder(folder, provider="local")
    assert failures(report) == []
    assert not [one.id for one in report.criteria if one.passed is None]
    assert report.measured["cold_start_s"] > 0


async def test_a_server_by_its_address() -> None:
    """What can be seen from outside is checked; what cannot is said to be not checked."""
    with serve("echo_env.server.app:app") as address:
        report = await validate_url(f"http://{address}")
    assert failures(report) == []
    assert [one.id for one in report.criteria if one.passed is None] == ["close"]
    report = await validate_url(f"http://{address}", timeout=2)
    assert failures(report) == ["start"]


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes, JSON on stdout and in a file, and flags of older tools that name what to use.

    Mutation: exit with 0 whatever the report says
    """
    folder = scaffold("demo_env", tmp_path)
    output = tmp_path / "report.json"
    assert run(["validate", str(folder), "--level", "static", "--json", "--output", str(output)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(output.read_text())
    assert shown["passed"] is True
    assert set(shown["criteria"][0]) == {"id", "description", "passed", "required", "details"}
    (folder / "Dockerfile").unlink()
    assert run(["validate", str(folder), "--level", "static"]) == 1
    out, err = capsys.readouterr()
    assert "dockerfile\tFAILED" in out
    assert err.endswith("failed\n")
    assert run(["validate", str(folder), "--level", "semantic"]) == 2
    assert run(["validate", str(folder), "--action", "{"]) == 2


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
            {"a": 0},
        ),
        ({"type": "integer", "minimum": 3, "multipleOf": 2}, 4),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": "number"}, 0.0),
        ({"type": "string", "minLength": 3}, "aaa"),
        ({"type": "string", "enum": ["x", "y"]}, "x"),
        ({"const": 5}, 5),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": "array", "prefixItems": [{"type": "null"}, {"type": "integer"}]}, [None, 0]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "a"),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"type": "object", "required": ["z"], "properties": {"z": {"default": 7}}}},
            },
            {"z": 7},
        ),
        ({}, {}),
    ],
)
def test_an_action_that_fits_a_schema(schema: dict[str, Any], value: Any) -> None:
    assert example(schema) == value


def test_a_schema_that_contains_itself_ends() -> None:
    schema = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/A"}}}},
    }
    assert isinstance(example(schema), dict)
