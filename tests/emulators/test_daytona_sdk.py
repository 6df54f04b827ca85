"""Daytona's SDK: what it must not read, how one logs in, and every error as ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("daytona_api_client_async", reason="needs the daytona SDK: pip install 'openenv[daytona]'")

from openenv_providers._daytona_api import translate
from openenv_providers.daytona import DaytonaProvider

from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.spec import SandboxSpec
from tests.emulators.daytona_bench import emulated, made, prepare
from tests.emulators.faces.daytona_api import JWT, KEY, ORGANIZATION, DaytonaFace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def face(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaytonaFace]:
    with emulated(engine, monkeypatch) as face:
        yield face


async def test_a_folder_s_env_files_decide_nothing(
    face: DaytonaFace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloned repository brings .env and .env.local: neither address, key, region nor telemetry come from them.

    Mutation: `AsyncDaytona` is used, which reads them
    """
    elsewhere: list[str] = []

    async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        elsewhere.append(str(await reader.readline()))
        writer.close()

    server = await asyncio.start_server(trap, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    text = (
        f"DAYTONA_API_URL=http://127.0.0.1:{port}\nDAYTONA_SERVER_URL=http://127.0.0.1:{port}\n"
        "DAYTONA_API_KEY=dtn_stolen\nDAYTONA_TARGET=evil-region\nDAYTONA_OTEL_ENABLED=true\n"
    )
    for name in (".env", ".env.local"):
        await asyncio.to_thread((tmp_path / name).write_text, text)
    monkeypatch.chdir(tmp_path)
    provider = await asyncio.to_thread(DaytonaProvider)
    sandbox = await made(provider, face)
    await provider.delete(sandbox.ref)
    await provider.aclose()
    server.close()
    assert elsewhere == []
    assert face.bodies[0].get("target") is None
    assert {headers["authorization"] for _, headers in face.headers} == {f"Bearer {KEY}"}
    assert not [path for path, _ in face.headers if "socket.io" in path]


async def test_a_jwt_and_its_organisation(face: DaytonaFace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY")
    assert "DAYTONA_API_KEY" in DaytonaProvider.check().reason
    with pytest.raises(ProviderUnavailable, match="DAYTONA_API_KEY"):
        await prepare(await asyncio.to_thread(DaytonaProvider), SandboxSpec(image="template:x"))
    monkeypatch.setenv("DAYTONA_JWT_TOKEN", JWT)
    monkeypatch.setenv("DAYTONA_ORGANIZATION_ID", ORGANIZATION)
    assert DaytonaProvider.check().ready
    provider = await asyncio.to_thread(DaytonaProvider)
    assert provider.scope().endswith(ORGANIZATION)
    await provider.delete((await made(provider, face)).ref)
    await provider.aclose()


class Answer(Exception):
    """An error as the SDK raises it."""

    def __init__(self, status: int, body: str, **headers: str) -> None:
        super().__init__(f"({status})\nHTTP response headers: rate limit\n{body}")
        self.status, self.body, self.headers = status, body, headers


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "outcome"),
    [
        (Answer(401, '{"message": "Unauthorized"}'), AuthError, False, "failed"),
        (Answer(403, '{"message": "Forbidden resource"}'), AuthError, False, "failed"),
        (Answer(403, '{"message": "Total CPU limit exceeded. Maximum allowed: 10."}'), RateLimited, True, "failed"),
        (Answer(403, '{"message": "8 exceeds maximum allowed per sandbox (4)"}'), CapabilityError, False, "failed"),
        (Answer(402, '{"message": "no credit"}'), QuotaExceeded, False, "failed"),
        (Answer(404, '{"message": "not found"}'), SandboxGone, False, "failed"),
        (Answer(409, '{"message": "state change in progress"}'), ProviderError, True, "failed"),
        (Answer(410, "gone"), SandboxGone, False, "failed"),
        (Answer(422, '{"message": "no"}'), ProviderError, False, "failed"),
        (Answer(429, "", **{"retry-after": "3"}), RateLimited, True, "failed"),
        (Answer(500, "oops"), ProviderError, True, "unknown"),
        (Answer(502, "oops"), ProviderUnavailable, True, "unknown"),
        (Answer(503, "oops"), ProviderUnavailable, True, "failed"),
        (asyncio.TimeoutError(), ProviderUnavailable, True, "unknown"),
        (ConnectionResetError(), ProviderUnavailable, True, "unknown"),
        (ValueError("1 validation error for Sandbox"), ProviderError, False, "unknown"),
    ],
)  # fmt: skip
async def test_the_table_of_errors(error: Exception, kind: type, retryable: bool, outcome: str) -> None:
    found = translate(error, what="creating", started=True)
    assert type(found) is kind
    assert (found.retryable, found.outcome, found.provider) == (retryable, outcome, "daytona")
    assert "HTTP response headers" not in found.message
