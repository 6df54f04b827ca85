"""What the command line does not say is left to the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from openenv_sandbox import launcher
from openenv_sandbox.cli.run import command
from openenv_sandbox.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


class _Seen(Exception):
    """Ends a launch where it would begin."""


def _asked(monkeypatch: pytest.MonkeyPatch, *words: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The arguments with which `openenv run` launches."""
    seen: dict[str, Any] = {}

    def launch(image: str, **arguments: Any) -> None:
        seen.update(arguments)
        raise _Seen

    monkeypatch.setattr(launcher, "launch", launch)
    monkeypatch.setattr("openenv_sandbox.launch", launch, raising=False)
    result = CliRunner(env=env).invoke(command, ["some/image:1", *words], obj=Terminal())
    assert isinstance(result.exception, _Seen), result.output
    return seen


def test_only_a_step_timeout_that_was_given_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured step timer is not overridden by a default of the verb.

    Mutation: --step-timeout has a default
    """
    assert _asked(monkeypatch)["timeouts"] == {}
    asked = _asked(monkeypatch, "--step-timeout", "7", "--ready-timeout", "9")
    assert asked["timeouts"] == {"step": 7.0, "ready": 9.0}


def test_the_variable_is_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """$OPENENV_PROVIDER stays below --profile: the configuration reads it, the verb does not.

    Mutation: -p takes its default from the variable
    """
    asked = _asked(monkeypatch, "--profile", "train", env={"OPENENV_PROVIDER": "docker"})
    assert (asked.get("provider"), asked["profile"]) == (None, "train")
    assert _asked(monkeypatch, "-p", "docker")["provider"] == "docker"
