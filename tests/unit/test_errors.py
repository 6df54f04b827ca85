from __future__ import annotations

import pickle

import pytest

from openenv_sandbox import errors
from openenv_sandbox.provider import SandboxRef
from openenv_sandbox.wire.error_frames import from_error_frame

REF = SandboxRef("docker", "here", "abc", "oe-1", state={"token": "sekret-canary"})
CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.OpenEnvError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_a_pickle_without_its_secrets(cls: type[errors.OpenEnvError]) -> None:
    """Message, hint and outcome arrive; what reattaching needs does not.

    Scenario: J06 M01
    Mutation: pickle the ref with its state
    """
    error = cls("it broke", ref=REF, hint="mend it", outcome="unknown", retryable=True)
    raw = pickle.dumps(error)
    assert b"sekret-canary" not in raw
    copy = pickle.loads(raw)
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert (copy.outcome, copy.retryable, copy.hint, copy.provider) == ("unknown", True, "mend it", "docker")


def test_an_error_says_where_and_what_next() -> None:
    assert str(errors.SandboxGone("it ended", ref=REF, hint="reset")) == (
        "it ended [provider docker] [sandbox abc]\n  hint: reset"
    )


def test_a_rejected_message_says_which_field() -> None:
    data = {
        "code": "VALIDATION_ERROR",
        "message": "Invalid message",
        "errors": [{"loc": ["number"], "msg": "Input should be a valid integer", "input": "x"}],
    }
    error = from_error_frame(data)
    assert isinstance(error, errors.ActionInvalid)
    assert "Server error: Invalid message (code: VALIDATION_ERROR)" in str(error)
    assert "number: Input should be a valid integer" in str(error)


def test_a_failed_factory_says_where_the_reason_is() -> None:
    error = from_error_frame({"code": "FACTORY_ERROR", "message": "no"})
    assert isinstance(error, errors.FactoryError)
    assert "logs()" in str(error)


@pytest.mark.parametrize("odd", [{}, {"code": "NEW"}, {"code": "VALIDATION_ERROR", "errors": "x"}])
def test_odd_frames_are_errors_too(odd: dict[str, object]) -> None:
    assert isinstance(from_error_frame(odd), errors.EnvironmentError_)
