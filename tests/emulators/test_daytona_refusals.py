"""What the emulated Daytona refuses, asked without its SDK and without the provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("daytona_api_client_async", reason="needs the daytona SDK: pip install 'openenv[daytona]'")

from tests.emulators.faces.daytona_api import JWT, KEY, ORGANIZATION, DaytonaFace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine

pytestmark = pytest.mark.emulator
AUTH = {"Authorization": f"Bearer {KEY}"}
S3 = {"Authorization": "AWS4-HMAC-SHA256 Credential=SOMEBODY/20261130/us-east-2/s3/aws4_request"}


class Bench:
    """One sandbox named ``there``, and a way to ask for anything."""

    def __init__(self, engine: Engine, face: DaytonaFace, url: str) -> None:
        self.engine, self.face, self.url = engine, face, url
        face.snapshots.add("light", engine.images[engine.image("light")], {"cpu": 1, "gpu": 0, "memory": 1, "disk": 3})
        made = self.ask("POST", "/api/sandbox", {"name": "there", "snapshot": "light"})
        assert made.status_code == 200
        self.id = made.json()["id"]

    def ask(self, method: str, path: str, json: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        path = path.replace("{id}", getattr(self, "id", ""))
        return httpx.request(
            method, self.url + path, json=json, headers=AUTH if headers is None else headers, trust_env=False
        )


@pytest.fixture
def bench(engine: Engine) -> Iterator[Bench]:
    from tests.emulators.engine import Front

    face = DaytonaFace(engine)
    with Front(engine, face) as front:
        yield Bench(engine, face, front.url)


@pytest.mark.parametrize(
    ("method", "path", "json", "status", "says"),
    [
        ("POST", "/api/sandbox", {"name": "x", "snapshot": "light", "nonsense": 1}, 400, "nonsense"),
        ("POST", "/api/sandbox", {"name": 7, "snapshot": "light"}, 400, "valid string"),
        ("POST", "/api/sandbox", {"snapshot": "light", "ttlMinutes": "60"}, 400, "valid integer"),
        ("POST", "/api/sandbox", {"snapshot": "light", "ttlMinutes": -1}, 400, "ttlMinutes"),
        ("POST", "/api/sandbox", {"snapshot": "light", "cpu": 2}, 400, "resources"),
        (
            "POST",
            "/api/sandbox",
            {"snapshot": "light", "autoStopInterval": 1, "autoPauseInterval": 1},
            400,
            "exclusive",
        ),
        ("POST", "/api/sandbox", {"snapshot": "none-such"}, 404, "none-such not found"),
        ("POST", "/api/sandbox", {"name": "there", "snapshot": "light"}, 409, "already exists"),
        ("GET", "/api/sandbox/none-such", None, 404, "none-such not found"),
        ("GET", "/api/sandbox?limit=500", None, 400, "limit"),
        ("GET", "/api/sandbox?label=x", None, 400, "label"),
        ("DELETE", "/api/sandbox/none-such", None, 404, "not found"),
        ("POST", "/api/sandbox/{id}/start", None, 400, "not in a state"),
        ("POST", "/api/sandbox/{id}/snapshot", {"name": "x", "memory": True}, 400, "memory"),
        ("GET", "/api/sandbox/{id}/ports/70000/preview-url", None, 400, "port"),
        ("POST", "/api/snapshots", {"name": "x"}, 400, "imageName or buildInfo"),
        ("POST", "/api/snapshots", {"name": "x y", "imageName": "debian:12"}, 400, "name is invalid"),
        ("POST", "/api/snapshots", {"name": "light", "imageName": "debian:12"}, 409, "already exists"),
        ("DELETE", "/api/snapshots/light", None, 409, "in use"),
        ("POST", "/toolbox/none-such/process/execute", {"command": "true"}, 404, "sandbox not found"),
        ("POST", "/toolbox/{id}/process/execute", {"command": "true", "shell": "bash"}, 400, "shell"),
        ("POST", "/toolbox/{id}/process/execute", {"command": ["true"]}, 400, "valid string"),
        ("POST", "/toolbox/{id}/files/upload-v2", None, 400, "path is required"),
    ],
)
def test_refused(bench: Bench, method: str, path: str, json: Any, status: int, says: str) -> None:
    answer = bench.ask(method, path, json)
    assert answer.status_code == status
    assert says in answer.json()["message"]
    assert answer.json()["statusCode"] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer dtn_wrong"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": f"Bearer {JWT}"}, 401),
        ({"Authorization": f"Bearer {JWT}", "X-Daytona-Organization-ID": "org-other"}, 401),
        ({"Authorization": f"Bearer {JWT}", "X-Daytona-Organization-ID": ORGANIZATION}, 200),
    ],
)
@pytest.mark.parametrize("path", ["/api/sandbox", "/api/sandbox/{id}", "/api/object-storage/push-access"])
def test_credentials(bench: Bench, path: str, headers: dict[str, str], status: int) -> None:
    answer = bench.ask("GET", path, headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["message"] == "Unauthorized"


def test_over_quota(bench: Bench) -> None:
    bench.engine.quota = 1
    answer = bench.ask("POST", "/api/sandbox", {"snapshot": "light"})
    assert (answer.status_code, "Total CPU limit exceeded" in answer.text) == (403, True)


def test_preview(bench: Bench) -> None:
    """The proxy wants the token of this sandbox, by path or by the vendor's form of host."""
    link = bench.ask("GET", "/api/sandbox/{id}/ports/8000/preview-url").json()
    path = link["url"].removeprefix(bench.url)
    assert path == f"/preview/8000-{bench.id}"
    host = {"Host": f"8000-{bench.id}.proxy.example"}
    right, wrong = {"X-Daytona-Preview-Token": link["token"]}, {"X-Daytona-Preview-Token": "wrong"}
    assert bench.ask("GET", path, headers={}).status_code == 401
    assert bench.ask("GET", path, headers=wrong).status_code == 401
    assert bench.ask("GET", "/health", headers=host | wrong).status_code == 401
    # Nobody listens there: the request has passed the check.
    assert bench.ask("GET", path, headers=right).status_code == 502
    assert bench.ask("GET", "/health", headers=host | right).status_code == 502
    assert bench.ask("GET", "/preview/8000-none-such", headers=right).status_code == 404


def test_object_store(bench: Bench) -> None:
    path = f"/s3/daytona-volume-builds/{ORGANIZATION}/abc/context.tar"
    assert bench.ask("PUT", path, headers={}).status_code == 403
    assert "InvalidAccessKeyId" in bench.ask("PUT", path, headers=S3).text


def test_a_background_process_holds_the_call(bench: Bench) -> None:
    """As the vendor's docs say; and ten seconds are the default, which nobody waits for here."""
    answer = bench.ask("POST", "/toolbox/{id}/process/execute", {"command": "sleep 30 & echo on", "timeout": 1})
    assert (answer.status_code, answer.json()["message"]) == (408, "command execution timeout")
