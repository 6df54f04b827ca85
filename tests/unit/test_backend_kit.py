"""What backends share: errors of any SDK, waiting, clients for each loop, and labels in names."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from openenv_sandbox import backend_kit as kit
from openenv_sandbox import redact
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    CreateTimeout,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.spec import RegistryAuth, SandboxSpec
from openenv_sandbox.testing.case import HANG_S
from openenv_sandbox.values import SandboxRef

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
REF = SandboxRef("cloud", "here", "box-1")
LABELS = {
    "oe-install": "a" * 16,
    "oe-run": "0badcafe",
    "oe-key": "oe-0badcafe-0123456789ab",
    "oe-expires": "1790000000",
}


class Api(Exception):
    def __init__(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status_code, self.headers = status, headers or {}


def refused(status: int, text: str = "no", **kw: Any) -> OpenEnvError:
    return kit.refusal(status, text, provider="cloud", what="creating", **kw)


@pytest.mark.parametrize(
    ("status", "cls", "retryable", "outcome"),
    [
        (400, ProviderError, False, "failed"),
        (401, AuthError, False, "failed"),
        (402, QuotaExceeded, False, "failed"),
        (403, AuthError, False, "failed"),
        (404, SandboxGone, False, "failed"),
        (408, ProviderUnavailable, True, "failed"),
        (409, ProviderError, True, "failed"),
        (410, SandboxGone, False, "failed"),
        (422, ProviderError, False, "failed"),
        (429, RateLimited, True, "failed"),
        (500, ProviderError, True, "unknown"),
        (502, ProviderUnavailable, True, "unknown"),
        (503, ProviderUnavailable, True, "unknown"),
        (504, ProviderUnavailable, True, "unknown"),
    ],
)
def test_a_status_is_an_error(status: int, cls: type[OpenEnvError], retryable: bool, outcome: str) -> None:
    error = refused(status, ref=REF, acted=True)
    assert type(error) is cls
    assert (error.retryable, error.outcome, error.ref) == (retryable, outcome, REF)
    assert refused(status).outcome == "failed", "a request that changes nothing had no effect"


def test_a_404_about_no_sandbox_is_no_sandbox_gone() -> None:
    assert type(refused(404)) is ProviderError
    assert type(refused(404, table={404: kit.Row(ImageError)})) is ImageError


def test_words_about_limits_decide_where_the_status_does_not() -> None:
    assert isinstance(refused(403, "disk quota exceeded"), QuotaExceeded)
    assert isinstance(refused(400, "Too many requests"), RateLimited)
    assert isinstance(refused(429, "sandbox limit reached"), QuotaExceeded)
    assert isinstance(refused(429, "sandbox limit reached", table={429: kit.Row(RateLimited, True)}), RateLimited)
    waiting = refused(503, retry_after=7.0)
    assert isinstance(waiting, RateLimited)
    assert waiting.retry_after == 7.0


def test_what_a_backend_says_is_masked() -> None:
    """Mutation: its text becomes ours as it is"""
    redact.register("s3cret-canary")
    try:
        error = refused(400, "no \x1b[31ms3cret-canary")
    finally:
        redact.forget("s3cret-canary")
    assert "canary" not in error.message
    assert "\x1b" not in error.message


def test_an_own_row_comes_first_and_may_know_the_outcome() -> None:
    row = kit.Row(ProviderUnavailable, True, "see the status page", "failed")
    error = refused(503, acted=True, table={503: row})
    assert (error.outcome, error.hint) == ("failed", "see the status page")


def test_an_exception_of_an_sdk_is_read_by_its_shape() -> None:
    error = kit.translate(Api(429, "slow", {"Retry-After": "3"}), provider="cloud", what="creating", acted=True)
    assert isinstance(error, RateLimited)
    assert error.retry_after == 3.0
    assert kit.translate(error, provider="cloud", what="again") is error


def lost(name: str, *bases: type[Exception], cause: Exception | None = None, acted: bool = True) -> OpenEnvError:
    made = type(name, bases or (Exception,), {})("key-0123456789")
    made.__cause__ = cause
    return kit.translate(made, provider="cloud", what="creating", acted=acted)


def test_what_was_never_sent_had_no_effect_and_a_lost_reply_may_have() -> None:
    never = lost("APIConnectionError", cause=type("ConnectError", (Exception,), {})())
    assert (type(never), never.outcome, never.retryable) == (ProviderUnavailable, "failed", True)
    cut = lost("ReadError")
    assert (type(cut), cut.outcome, cut.retryable) == (ProviderUnavailable, "unknown", True)
    assert lost("ReadError", acted=False).outcome == "failed"
    strange = lost("ValidationError", ValueError)
    assert (type(strange), strange.outcome, strange.retryable) == (ProviderError, "unknown", False)
    assert not any("0123456789" in str(error) for error in (never, cut, strange)), "an SDK's text may hold anything"


async def test_poll_rides_out_what_may_succeed_later() -> None:
    answers: Iterator[Any] = iter([ProviderUnavailable("down", retryable=True), "starting", RateLimited("slow"), "up"])

    async def look() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert await kit.poll(look, lambda state: state == "up", deadline=5, first=0.001) == "up"


async def test_poll_ends_at_its_deadline_with_the_last_news() -> None:
    async def starting() -> str:
        return "starting"

    async def down() -> str:
        raise ProviderUnavailable("down", retryable=True)

    async def gone() -> str:
        raise SandboxGone("gone", ref=REF)

    with pytest.raises(TimeoutError):
        await kit.poll(starting, lambda state: state == "up", deadline=0.02, first=0.001)
    with pytest.raises(ProviderUnavailable):
        await kit.poll(down, bool, deadline=0.02, first=0.001)
    with pytest.raises(SandboxGone):
        await kit.poll(gone, bool, deadline=5)


async def test_poll_looks_no_sooner_than_the_backend_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the pause alone decides"""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def look() -> bool:
        if not slept:
            raise RateLimited("slow down", retry_after=7.0)
        return True

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await kit.poll(look, bool, first=0.1)
    assert slept == [7.0]


async def test_poll_does_not_repeat_what_its_condition_raises() -> None:
    looks: list[int] = []

    async def look() -> str:
        looks.append(1)
        return "failed"

    def until(state: str) -> bool:
        raise ProviderError(f"it is {state}", retryable=True)

    with pytest.raises(ProviderError):
        await kit.poll(look, until, deadline=5)
    assert len(looks) == 1


def test_each_loop_has_a_client_of_its_own() -> None:
    made: list[object] = []
    closed: list[object] = []

    async def make() -> object:
        await asyncio.sleep(0)
        made.append(object())
        return made[-1]

    async def close(client: object) -> None:
        closed.append(client)

    clients = kit.PerLoop(make, close)

    async def one() -> object:
        async with clients.use() as client:
            return client

    async def run() -> None:
        first, second = await asyncio.gather(one(), one())
        assert first is second
        await clients.aclose()
        await clients.aclose()
        assert closed[-1] is first
        assert await one() is not first, "what comes late has a client that ends with it"
        assert closed[-1] is made[-1]

    asyncio.run(run())
    asyncio.run(run())
    assert len(made) == len(closed) == 4


async def test_who_gives_up_takes_no_client_from_the_others() -> None:
    """One who waits is cancelled, then one who closes: the client comes, and is closed.

    Mutation: await the making without a shield, or close only what is there
    """
    go, closed = asyncio.Event(), asyncio.Event()

    async def make() -> str:
        await go.wait()
        return "client"

    async def close(client: str) -> None:
        closed.set()

    clients = kit.PerLoop(make, close)

    async def one() -> str:
        async with clients.use() as client:
            return client

    hasty, patient = asyncio.ensure_future(one()), asyncio.ensure_future(one())
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.wait({hasty})
    closing = asyncio.ensure_future(clients.aclose())
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.wait_for(patient, HANG_S) == "client"
    await asyncio.wait_for(closing, HANG_S)
    assert closed.is_set()


async def test_a_client_that_could_not_be_made_is_made_again() -> None:
    answers: Iterator[Any] = iter([ProviderUnavailable("no key"), "client"])

    async def make() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async def close(client: str) -> None:
        return

    clients = kit.PerLoop(make, close)
    with pytest.raises(ProviderUnavailable):
        async with clients.use():
            pass
    async with clients.use() as client:
        assert client == "client"


async def test_undo_says_whether_something_may_be_left() -> None:
    async def removed() -> None:
        return

    async def refused() -> None:
        raise ProviderUnavailable("down")

    error = CreateTimeout("too late")
    await kit.undo(removed(), error)
    assert error.outcome == "failed"
    await kit.undo(refused(), error)
    assert str(error.outcome) == "unknown"
    assert "down" in str(error.hint)


def test_a_digest_tells_logins_apart_and_gives_nothing_away() -> None:
    assert kit.digest("key-one") != kit.digest("key-two")
    assert "key" not in kit.digest("key-one")
    assert kit.digest("a", "b") != kit.digest("ab")
    assert kit.digest("") == kit.digest() == "none"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-30T12:00:00Z", 1796040000.0),
        ("2026-11-30 12:00:00", 1796040000.0),
        ("2026-11-30T12:00:00.123456789Z", 1796040000.123456789),
        ("2026-11-30T14:30:00+02:30", 1796040000.0),
        ("2026-11-30T10:00:00-0200", 1796040000.0),
        ("", None),
        (None, None),
        ("soon", None),
    ],
)
def test_dates(text: str | None, seconds: float | None) -> None:
    assert kit.unix_time(text) == (pytest.approx(seconds, abs=1e-6) if seconds is not None else None)


def test_a_name_carries_labels_and_gives_them_back() -> None:
    key = LABELS["oe-key"]
    plain = kit.name_with(key, LABELS, longest=63, provider="cloud")
    assert kit.labels_in(plain) == LABELS
    assert set(plain) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    mine = {**LABELS, "team": "Red_Team", "oe-run": "feedbeef"}
    assert kit.labels_in(kit.name_with(key, mine, longest=255, provider="cloud")) == mine
    with pytest.raises(CapabilityError, match="63 characters") as caught:
        kit.name_with(key, mine, longest=63, provider="cloud")
    assert caught.value.field == "labels"
    assert kit.labels_in("somebody-elses") == {}


@pytest.mark.parametrize(
    ("image", "registry"),
    [("python:3.12", "https://index.docker.io/v1/"), ("ghcr.io/me/env:1", "ghcr.io"), ("host:5000/env", "host:5000")],
)
def test_a_login_as_docker_writes_it(image: str, registry: str) -> None:
    spec = SandboxSpec(image=image, registry_auth=RegistryAuth(username="me", password=SecretStr("pa:ss")))
    assert spec.registry_auth is not None
    auths = json.loads(kit.docker_config(image, spec.registry_auth))["auths"]
    assert base64.b64decode(auths[registry]["auth"]) == b"me:pa:ss"
