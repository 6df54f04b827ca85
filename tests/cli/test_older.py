"""What the older command line had and this one has not: said, with what to use, and nothing done."""

from __future__ import annotations

import pytest

from openenv_sandbox.cli import older
from openenv_sandbox.cli.main import VERBS, run

FLAGS = [(verb, flag) for verb, flags in older.FLAGS.items() for names in flags for flag in names.split("/")]


@pytest.mark.parametrize("verb", list(older.VERBS))
def test_an_older_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever follows it.

    Mutation: let click say that there is no such command
    """
    assert run([verb, "some", "--thing"]) == 2
    err = capsys.readouterr().err
    assert older.VERBS[verb] in err
    assert verb not in VERBS


@pytest.mark.parametrize(("verb", "flag"), FLAGS)
def test_an_older_flag(verb: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before the folder is even looked at; not in the help.

    Mutation: ignore it
    """
    assert run([verb, "./nowhere", flag, "value"]) == 2
    said = capsys.readouterr().err
    assert "is not an option any more" in said
    assert "nowhere" not in said
    assert run([verb, "--help"]) == 0
    assert f" {flag} " not in capsys.readouterr().out


def test_what_a_verb_has_by_itself_stays_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for twice, a verb gets them once; ``gc -n`` is its own."""
    assert run(["push", "-n", "2"]) == run(["push", "-n", "2"]) == 2
    assert run(["gc", "-n"]) == 0
