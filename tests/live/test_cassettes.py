"""One short life of a sandbox, recorded from the vendor's own service and replayed without an account."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from openenv_sandbox.provider import Image, ImageConfig
from openenv_sandbox.spec import SandboxSpec
from tests.live import cases
from tests.live.redaction import GONE, Redactor, configuration

pytest.importorskip("pytest_recording", reason="needs pytest-recording")

pytestmark = [pytest.mark.anyio]
# With its configuration, so that no registry is asked: that is no part of what is recorded.
IMAGE = Image("ref", "python:3.12-slim", config=ImageConfig(cmd=("python3",)))
KEY = "oe-cassette-000000000001"
LOGINS = {
    "aca": ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_SUBSCRIPTION_ID", "AZURE_TENANT_ID"),
    "daytona": ("DAYTONA_API_KEY", "DAYTONA_ORGANIZATION_ID"),
    "novita": ("NOVITA_API_KEY",),
    "runloop": ("RUNLOOP_API_KEY",),
}


@pytest.fixture
def vcr_cassette_dir() -> str:
    return str(cases.CASSETTES)


@pytest.fixture
def default_cassette_name(name: str) -> str:
    return name


@pytest.fixture
def vcr_config(name: str) -> dict[str, Any]:
    return configuration(Redactor.of_environment(LOGINS[name]))


@pytest.fixture
def login(name: str, vcr_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a replay the credentials are stand-ins; `vcr_config` has read the real ones, where there are some."""
    if name not in cases.NAMED:
        for variable in LOGINS[name]:
            monkeypatch.setenv(variable, os.environ.get(variable) or GONE)


@pytest.mark.vcr
@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("name", cases.RECORDABLE)
async def test_one_life(name: str) -> None:
    """Create, find, attach, a way to a port, delete: what the service answers is what the provider understands.

    No command: what makes its output certain is random, so that a recorded answer never fits.
    """
    cls = cases.provider(name)
    provider = await asyncio.to_thread(cls, cases.options(name))
    labels = {"oe-key": KEY, "oe-install": "cassette", "oe-run": "cassette", "oe-expires": "4102444800"}
    spec = SandboxSpec(image=IMAGE.name, labels=labels, command="sleep 300", **cases.spec(name))
    try:
        prepared = await provider.prepare(spec, IMAGE, on_log=lambda line: None)
        sandbox = await provider.create(prepared, spec, key=KEY)
        try:
            assert [ref.id for ref in await provider.find(KEY)] == [sandbox.ref.id]
            taken = await provider.attach(sandbox.ref)
            assert taken.ref == sandbox.ref
            assert (await sandbox.endpoint(8000)).url.startswith("http")
            await taken.aclose()
        finally:
            await provider.delete(sandbox.ref)
    finally:
        await provider.aclose()
