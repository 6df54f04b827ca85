from __future__ import annotations

import io
import logging
import pickle
import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv_sandbox import redact
from openenv_sandbox.errors import BuildError, ProviderError, ServerExited

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "sekret-canary"


@pytest.fixture
def canary() -> Iterator[str]:
    redact.register(CANARY)
    yield CANARY
    redact.forget(CANARY)


def test_registered_values_are_masked_in_every_spelling() -> None:
    redactor = redact.Redactor()
    redactor.register('pa"ss wörd\n2', "short", None, "")
    shown = redactor.mask('pa"ss wörd\n2 | pa%22ss%20w%C3%B6rd%0A2 | pa\\"ss w\\u00f6rd\\n2 | ' + repr('pa"ss wörd\n2'))
    assert "rd" not in shown
    assert redactor.mask("short") == "short"


def test_the_longer_of_two_overlapping_values_goes_as_a_whole() -> None:
    redactor = redact.Redactor()
    redactor.register("abcdef", "abcdef-ghijkl")
    assert redactor.mask("x abcdef-ghijkl y") == "x *** y"


def test_a_private_key_is_masked_line_by_line() -> None:
    redactor = redact.Redactor()
    redactor.register("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END KEY-----")
    assert "MIIEvQ" not in redactor.mask("line 2 was MIIEvQIBADANBgkqhkiG9w0")


def test_values_are_counted() -> None:
    redactor = redact.Redactor()
    redactor.register("value-1", "value-1")
    redactor.forget("value-1")
    assert redactor.mask("value-1") == "***"
    redactor.forget("value-1")
    assert redactor.mask("value-1") == "value-1"
    with redactor.registered(["value-2"]):
        assert redactor.mask("value-2") == "***"
    assert redactor.mask("value-2") == "value-2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pull https://me:hunter22@ghcr.io/v2/", "pull https://***@ghcr.io/v2/"),
        ("GET /ws?token=abc123&x=1", "GET /ws?token=***&x=1"),
        ("GET /ws?preview_token=abc123#f", "GET /ws?preview_token=***#f"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer ***"),
        ('{"api_key": "abcdef012", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("FOO_API_KEY=abcdef0 BAR=abcdef0", "FOO_API_KEY=*** BAR=abcdef0"),
        ("password: hunter22", "password: ***"),
    ],
)
def test_names_give_secrets_away(text: str, shown: str) -> None:
    assert redact.mask(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "bad token: unauthorized",
        "key=oe-01234567-0123456789ab",
        "MAX_TOKENS=4096",
        "GET /health?port=8000",
        "see https://example.org/a@b",
        "tokenizer: gpt2-large9",
        "monkey: banana99",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert redact.mask(text) == text


def test_mappings_are_masked_by_name_and_by_value() -> None:
    redactor = redact.Redactor()
    redactor.register(CANARY)
    shown = redactor.mask_mapping(
        {
            "apiKey": "x",
            "OPENAI_API_KEY": "abcdefgh",
            "max_tokens": 5,
            "nested": {"db-password": "abc", "list": [CANARY, "y"]},
            "oe-key": "oe-01234567-0123456789ab",
            "monkey": "banana",
        }
    )
    assert shown == {
        "apiKey": "***",
        "OPENAI_API_KEY": "***",
        "max_tokens": 5,
        "nested": {"db-password": "***", "list": ["***", "y"]},
        "oe-key": "oe-01234567-0123456789ab",
        "monkey": "banana",
    }


def test_errors_are_masked_with_everything_they_lead_to(canary: str) -> None:
    """The texts of an error, its log, its causes and its notes hold no secret, pickled or not.

    Scenario: M01
    Mutation: mask_error leaves out __cause__, or the log of a BuildError
    """
    error: BaseException
    try:
        try:
            raise ValueError(f"got {canary}")
        except ValueError as inner:
            raise BuildError(f"bad {canary}", log=f"RUN {canary}\n", hint=f"unset {canary}") from inner
    except BuildError as outer:
        error = redact.mask_error(outer)
    error.__notes__ = [f"note {canary}"]  # type: ignore[attr-defined]
    redact.mask_error(error)
    assert canary not in f"{error}{error!r}{error.__cause__}{error.__notes__}"  # type: ignore[attr-defined]
    assert canary.encode() not in pickle.dumps(error)
    assert "bad ***" in str(error)
    circular = ProviderError("a")
    circular.__cause__ = circular
    redact.mask_error(circular)
    assert "***" in str(redact.mask_error(ServerExited("x", log=canary)))

    class OfAnSdk(Exception):
        def __init__(self, explanation: str) -> None:
            self.explanation = explanation

        def __str__(self) -> str:
            return f"500: {self.explanation}"

    error.__cause__ = OfAnSdk(f"cannot start with {canary}")
    assert canary not in "".join(traceback.format_exception(redact.mask_error(error)))


def test_logs_of_every_layer_are_masked(canary: str, caplog: pytest.LogCaptureFixture) -> None:
    """No logger below ``openenv`` shows a secret: not in its message, its traceback, or an extra field.

    Scenario: M01
    Mutation: install() puts the filter on the ``openenv`` logger alone, without the handler
    """
    caplog.set_level(logging.DEBUG, logger="openenv")
    seen = io.StringIO()
    own = logging.StreamHandler(seen)
    own.setFormatter(logging.Formatter("%(message)s %(extra)s"))
    later = logging.getLogger("openenv.made.later")
    root = logging.getLogger()
    root.addHandler(own)
    try:
        later.debug("value %s", canary, extra={"extra": canary})
        try:
            raise ValueError(canary)
        except ValueError:
            later.exception("failed", extra={"extra": {"api_key": "x"}})
    finally:
        root.removeHandler(own)
    assert canary not in seen.getvalue() + caplog.text
    assert "value ***" in seen.getvalue()
    assert "ValueError: ***" in seen.getvalue()


def test_warnings_show_without_any_logging_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Installing the masking takes nothing away from a program that has configured no logging."""
    redact.install()
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    stderr, logging.lastResort = logging.lastResort, logging.StreamHandler()
    logging.lastResort.setLevel(logging.WARNING)
    try:
        logging.getLogger("openenv.local").warning("no bubblewrap")
        logging.getLogger("openenv.local").info("quiet")
    finally:
        root.handlers, logging.lastResort = handlers, stderr
    assert capsys.readouterr().err == "no bubblewrap\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb\r\nc\td", "a\nb\nc\td"),
        ("x\x00\x08\x9b31my\u202e", "xy"),
        ("\x1bPq#0\x1b\\z", "z"),
        ("\x1b(Bq\x1b=", "q"),
    ],
)
def test_control_characters_are_stripped(text: str, shown: str) -> None:
    assert redact.clean(text) == shown


@given(st.text())
def test_cleaned_text_holds_no_escape_and_stays_as_it_is(text: str) -> None:
    once = redact.clean(text)
    assert "\x1b" not in once
    assert "\r" not in once
    assert redact.clean(once) == once
