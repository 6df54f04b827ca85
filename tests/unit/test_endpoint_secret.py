"""An address that is itself the key is shown to nobody."""

from __future__ import annotations

import gc
import logging

import pytest

from openenv_sandbox import GenericEnvClient, probe, redact
from openenv_sandbox.client import target
from openenv_sandbox.errors import ConfigError
from openenv_sandbox.events import Event, Reporter
from openenv_sandbox.provider import Endpoint

pytestmark = pytest.mark.anyio
SHARE = "Kq7-share-canary-0123"
URL = f"https://{SHARE}.share.example.org/way"


def test_neither_endpoint_target_client_nor_event_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    """Mutation: Endpoint does not register url_secret"""
    endpoint = Endpoint(URL, url_secret=SHARE)
    told: list[Event] = []
    with caplog.at_level(logging.DEBUG, logger="openenv"):
        Reporter("cloud", told.append).emit("ready", endpoint.shown)
        logging.getLogger("openenv.provider.cloud").warning("no way to %s", URL)
    way = target.resolve(endpoint.url, headers={}, endpoint=endpoint)
    client = GenericEnvClient(base_url=URL)
    texts = [repr(endpoint), endpoint.shown, told[0].message, way.url, repr(client), *caplog.messages]
    assert [text for text in texts if SHARE.lower() in text.lower()] == []
    assert way.host == f"{SHARE}.share.example.org".lower(), "it is still what is dialled"
    assert endpoint.shown == "https://***.share.example.org/way"


async def test_it_never_travels_in_clear_text() -> None:
    endpoint = Endpoint(f"http://share.example.org/{SHARE}", url_secret=SHARE)
    with pytest.raises(ConfigError, match="not encrypted"):
        await probe.get(endpoint, "/health", token=None, timeout=5)


def test_it_is_forgotten_with_the_endpoint() -> None:
    endpoint = Endpoint(URL, url_secret=SHARE)
    assert SHARE not in redact.mask(URL)
    del endpoint
    gc.collect()
    assert redact.mask(URL) == URL


def test_what_is_no_part_of_the_address_is_refused() -> None:
    with pytest.raises(ValueError, match="part of url"):
        Endpoint(URL, url_secret="another-secret")
    with pytest.raises(ValueError, match="6 characters"):
        Endpoint("https://abc.example.org", url_secret="abc")
