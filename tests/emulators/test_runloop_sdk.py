"""Runloop's SDK: every error as ours, what it must not write into a log, clients of two loops."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("runloop_api_client", reason="needs the Runloop SDK: pip install 'openenv[runloop]'")

from openenv_providers._runloop_api import translate
from openenv_providers.runloop import RunloopProvider

from openenv_sandbox.errors import (
    AuthError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from tests.emulators.faces.runloop_api import KEY
from tests.emulators.runloop_bench import asked, emulated, made, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine
    from tests.emulators.faces.runloop_api import RunloopFace

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]
REQUEST = httpx.Request("POST", "https://api.runloop.ai/v1/devboxes")


@pytest.fixture
def face(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunloopFace]:
    with emulated(engine, monkeypatch) as face:
        yield face


def answer(status: int, message: str = "no", **headers: str) -> Exception:
    """An error as the SDK makes it."""
    from runloop_api_client import AsyncRunloop

    client = AsyncRunloop(bearer_token="ak_x", http_client=httpx.AsyncClient())
    response = httpx.Response(status, headers=headers, json={"message": message}, request=REQUEST)
    error: Exception = client._make_status_error_from_response(response)
    return error


def silence(cause: Exception | None) -> Exception:
    """No answer, as the SDK says it."""
    from runloop_api_client import APIConnectionError

    error: Exception = APIConnectionError(request=REQUEST)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("status", "message", "headers", "kind", "retryable", "outcome"),
    [
        (400, "bad", {}, ProviderError, False, "failed"),
        (401, "Invalid API key", {}, AuthError, False, "failed"),
        (402, "pay", {}, QuotaExceeded, False, "failed"),
        (403, "not allowed", {}, AuthError, False, "failed"),
        (403, "account quota reached", {}, QuotaExceeded, False, "failed"),
        (404, "not found", {}, SandboxGone, False, "failed"),
        (408, "timed out", {}, ProviderUnavailable, True, "failed"),
        (409, "snapshot in progress", {}, ProviderError, True, "failed"),
        (422, "no", {}, ProviderError, False, "failed"),
        (429, "slow", {"retry-after": "3"}, RateLimited, True, "failed"),
        (500, "oops", {}, ProviderError, True, "unknown"),
        (502, "oops", {}, ProviderUnavailable, True, "unknown"),
        (503, "oops", {}, ProviderUnavailable, True, "unknown"),
    ],
)
def test_the_table_of_errors(
    status: int, message: str, headers: dict[str, str], kind: type, retryable: bool, outcome: str
) -> None:
    found = translate(answer(status, message, **headers), what="creating", started=True)
    assert type(found) is kind
    assert (found.retryable, found.outcome, found.provider) == (retryable, outcome, "runloop")
    assert f"creating: {message}" in found.message
    assert translate(answer(status, message), what="looking").outcome == "failed"


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "outcome"),
    [
        (silence(httpx.ReadError("cut")), ProviderUnavailable, True, "unknown"),
        (silence(httpx.ReadTimeout("late")), ProviderUnavailable, True, "unknown"),
        (silence(httpx.ConnectError("refused")), ProviderUnavailable, True, "failed"),
        (silence(httpx.ConnectTimeout("late")), ProviderUnavailable, True, "failed"),
        (silence(None), ProviderUnavailable, True, "unknown"),
        (ValueError("1 validation error for DevboxView"), ProviderError, False, "unknown"),
        (SandboxGone("gone"), SandboxGone, False, "failed"),
    ],
)
def test_no_answer(error: Exception, kind: type, retryable: bool, outcome: str) -> None:
    found = translate(error, what="creating", started=True)
    assert type(found) is kind
    assert (found.retryable, found.outcome) == (retryable, outcome)


async def test_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` names the variable; a request says so too, and sends nothing.

    Mutation: an empty key is sent
    """
    monkeypatch.delenv("RUNLOOP_API_KEY", raising=False)
    assert "RUNLOOP_API_KEY" in RunloopProvider.check().reason
    provider = await asyncio.to_thread(RunloopProvider, {"base_url": "http://127.0.0.1:9"})
    with pytest.raises(ProviderUnavailable, match="RUNLOOP_API_KEY") as caught:
        await provider.find("oe-1")
    assert not caught.value.retryable
    await provider.aclose()


def test_an_account_is_part_of_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one account does not know is not gone in another; the key itself is not shown."""
    monkeypatch.setenv("RUNLOOP_API_KEY", KEY)
    first = RunloopProvider().scope()
    monkeypatch.setenv("RUNLOOP_API_KEY", "ak_other")
    assert RunloopProvider().scope() != first
    assert KEY not in first


async def test_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLOOP_API_KEY", KEY)
    provider = await asyncio.to_thread(RunloopProvider, {"base_url": "http://127.0.0.1:9"})
    with pytest.raises(ProviderUnavailable, match="cannot be reached") as caught:
        await provider.find("oe-1")
    assert (caught.value.outcome, caught.value.retryable) == ("failed", True)
    await provider.aclose()


async def test_the_sdk_repeats_nothing(face: RunloopFace) -> None:
    """Its five repetitions of a create could make six devboxes.

    Mutation: max_retries is left at the SDK's default
    """
    provider = await asyncio.to_thread(RunloopProvider)
    prepared = await prepare(provider, asked(face))
    failed = face.engine.faults.add("create", status=500, times=None)
    with pytest.raises(ProviderError):
        await provider.create(prepared, asked(face), key="oe-1")
    assert failed.hits == 1
    await provider.aclose()


async def test_what_is_uploaded_is_in_no_log(face: RunloopFace, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's debug log repeats what it sends; input of commands holds secrets.

    Mutation: the bytes are given to the SDK as they are
    """
    provider = await asyncio.to_thread(RunloopProvider)
    sandbox = await made(provider, face)
    with caplog.at_level(logging.DEBUG):
        await sandbox.put("/tmp/input", b"s3kret-canary")
    written = face.engine.boxes[sandbox.ref.id].read("/tmp/input")
    assert await asyncio.to_thread(face.engine.call, written) == b"s3kret-canary"
    assert "upload_file" in caplog.text
    assert "s3kret-canary" not in caplog.text
    await provider.aclose()


def test_two_loops(face: RunloopFace) -> None:
    """Each loop has a client of its own, and what is closed on one still works on another.

    Mutation: one client for all loops
    """
    provider = RunloopProvider()

    async def look() -> list[Any]:
        try:
            return list(await provider.find("oe-1"))
        finally:
            await provider.aclose()

    async def look_after_closing() -> list[Any]:
        await provider.aclose()
        await provider.aclose()
        found = list(await provider.find("oe-1"))
        assert asyncio.get_running_loop() not in provider.api.clients._made, "a client that nobody closes"
        return found

    for coro in (look(), look(), look_after_closing()):
        assert asyncio.run(coro) == []


async def test_errors_name_the_sandbox(face: RunloopFace) -> None:
    provider = await asyncio.to_thread(RunloopProvider)
    sandbox = await made(provider, face)
    face.engine.faults.add("delete", status=500)
    with pytest.raises(OpenEnvError, match=sandbox.ref.id):
        await provider.delete(sandbox.ref)
    await provider.aclose()
