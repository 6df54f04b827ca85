"""Nothing secret is written into a cassette, and what is written can be replayed."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.live.redaction import GONE, Redactor, configuration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

vcr = pytest.importorskip("vcr")

KEY = "dtn_0123456789abcdef"
TOKEN = "port-token-987654321"
SESSION = "session-cookie-5555"
VALUE = "value-of-a-variable"
ACCOUNT = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
SECRETS = (KEY, TOKEN, SESSION, VALUE, ACCOUNT)


class Vendor(BaseHTTPRequestHandler):
    """Says everything that must not be kept."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = {
            "id": "sandbox-1",
            "state": "started",
            "organizationId": ACCOUNT,
            "previewToken": TOKEN,
            "url": f"https://8000-sandbox-1.example.com/?t={TOKEN}",
            "env": {"PLAIN": VALUE},
            "nested": [{"apiKey": KEY, "note": f"made by {ACCOUNT}"}],
        }
        data = json.dumps(body).encode()
        self.send_response(201)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("set-cookie", f"session={SESSION}")
        self.send_header("x-request-id", "r-1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def vendor() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.post(
            f"{url}/subscriptions/{ACCOUNT}/sandboxes?api_key={KEY}&page=2",
            headers={"Authorization": f"Bearer {KEY}", "Cookie": f"session={SESSION}"},
            json={"image": "python:3.12", "env": {"PLAIN": VALUE}, "token": TOKEN},
        )


def test_a_cassette_holds_no_secret_and_replays(vendor: str, tmp_path: Path) -> None:
    """Headers, parameters, bodies, paths and cookies: a secret named once is gone everywhere.

    Scenario: M01
    Mutation: only the request's headers are looked at
    """
    cassette = tmp_path / "one.yaml"
    with vcr.VCR(**configuration(Redactor([KEY]))).use_cassette(str(cassette), record_mode="once"):
        live = ask(vendor)
    assert live.json()["previewToken"] == TOKEN, "the test itself sees the real answer"
    text = cassette.read_text()
    assert [secret for secret in SECRETS if secret in text] == []
    assert "sandbox-1" in text
    assert "python:3.12" in text
    with vcr.VCR(**configuration(Redactor())).use_cassette(str(cassette), record_mode="none"):
        replayed = ask(vendor)
    assert (replayed.status_code, replayed.json()["id"], replayed.json()["previewToken"]) == (201, "sandbox-1", GONE)


def test_logins_are_not_recorded() -> None:
    class Request:
        uri = "https://login.microsoftonline.com/tenant/oauth2/v2.0/token"

    assert Redactor().request(Request()) is None


@pytest.mark.parametrize(
    "body", [b"\xff\xfe " + KEY.encode(), f"not json {KEY}", f'{{"token": "{TOKEN}"'.encode(), b""]
)
def test_what_is_no_json_is_redacted_too(body: Any) -> None:
    redactor = Redactor([KEY])
    found = redactor.body(body)
    assert type(found) is type(body)
    text = found.decode("latin-1") if isinstance(found, bytes) else found
    assert not any(secret in text for secret in SECRETS)


def test_an_id_of_the_account_has_one_stand_in() -> None:
    redactor = Redactor()
    first, second = redactor.text(f"{ACCOUNT} {ACCOUNT}").split()
    assert first == second != ACCOUNT
    assert redactor.url(f"https://x/subscriptions/{ACCOUNT}/y") == f"https://x/subscriptions/{first}/y"
