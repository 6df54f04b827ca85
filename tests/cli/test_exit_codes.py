from __future__ import annotations

import sys

import click
import pytest

from openenv_sandbox import errors
from openenv_sandbox.cli.terminal import Terminal, exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SandboxGone("x"), 1),
        (errors.ConfigError("x"), 2),
        (errors.ImageError("x"), 2),
        (errors.UnknownProvider("x"), 2),
        (errors.ProviderUnavailable("x"), 3),
        (errors.MissingExtraError("x"), 3),
        (errors.AuthError("x"), 3),
        (errors.CapabilityError("x"), 4),
        (errors.TrustError("x"), 4),
        (errors.ExecutionError("x"), 5),
        (RuntimeError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_is_one_line_and_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal().guard() as outcome:
        raise errors.MissingExtraError("no SDK", provider="docker", hint="pip install 'openenv[docker]'")
    assert outcome.code == 3
    err = capsys.readouterr().err
    assert err == "openenv: no SDK [provider docker]\n  hint: pip install 'openenv[docker]'\n"


def test_secrets_are_masked_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    from openenv_sandbox import redact

    redact.register("sekret-canary")
    with Terminal().guard():
        raise RuntimeError("login with sekret-canary failed")
    assert "sekret-canary" not in capsys.readouterr().err


def test_interrupts_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal().guard() as outcome:
        raise KeyboardInterrupt
    assert outcome.code == 130
    with Terminal().guard() as outcome:
        raise click.UsageError("no")
    assert outcome.code == 2


def test_output_that_the_terminal_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Terminal().data("café 😀")
    sys.stdout.flush()
    assert raw.getvalue() == b"caf\\xe9 \\U0001f600\n"


def test_strangers_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors, logs and names may hold anything; results stay as they are for programs.

    Mutation: print text of a remote git as it came
    """
    hostile = "a\x1b]52;c;aGk=\x07b\x9b31m\tc\r\nd"
    with Terminal().guard():
        raise errors.ConfigError(hostile)
    with Terminal().progress(hostile) as update:
        update(f"{hostile}!")
    Terminal().data(hostile)
    out, err = capsys.readouterr()
    assert out == f"{hostile}\n"
    assert not set(err) & set("\x1b\x07\x9b\r")
    assert "\tc\nd" in err
    terminal = Terminal()
    terminal.pretty = True
    terminal.table(["name"], [[hostile]])
    terminal.data(hostile)
    assert not set(capsys.readouterr().out) & set("\x07\x9b")
