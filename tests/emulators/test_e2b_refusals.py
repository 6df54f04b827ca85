"""What the emulators of E2B and Novita refuse, asked without provider and SDK."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.emulators.e2b_bench import SDKS, emulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine
    from tests.emulators.proof import Emulated

pytestmark = pytest.mark.emulator
ROOT = {"Authorization": f"Basic {base64.b64encode(b'root:').decode()}"}


@pytest.fixture(params=sorted(SDKS))
def cloud(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Emulated]:
    pytest.importorskip(SDKS[request.param])
    yield from emulate(request.param, engine)


@pytest.fixture
def box(cloud: Emulated) -> Any:
    """A private sandbox."""
    created = ask(cloud, "POST", cloud.face.create_path, json={**BASE, "network": {"allowPublicTraffic": False}})
    assert created.status_code == 201, created.text
    return cloud.engine.boxes[created.json()["sandboxID"]]


BASE: dict[str, Any] = {"templateID": "base", "timeout": 300, "metadata": {"a": "b"}}


def ask(cloud: Emulated, method: str, path: str, *, key: str | None = "", **kw: Any) -> httpx.Response:
    headers = {} if key is None else {"X-API-KEY": key or cloud.face.key}
    with httpx.Client(base_url=cloud.front.url, trust_env=False) as client:
        return client.request(method, path, headers={**headers, **kw.pop("headers", {})}, **kw)


def words(answer: httpx.Response) -> str:
    return answer.text.replace('\\"', '"')


REST = [
    ("no key", "POST", "create", {"json": BASE, "key": None}, 401, "Invalid API key"),
    ("wrong key", "GET", "/v2/sandboxes", {"key": "e2b_other"}, 401, "Invalid API key"),
    ("unknown field", "POST", "create", {"json": {**BASE, "image": "x"}}, 400, '"image" is unsupported'),
    ("mistyped field", "POST", "create", {"json": {**BASE, "timeout": "300"}}, 400, "wrong type"),
    ("a number as label", "POST", "create", {"json": {**BASE, "metadata": {"a": 1}}}, 400, "must be a string"),
    ("unknown network field", "POST", "create", {"json": {**BASE, "network": {"allow_out": []}}}, 400, "unsupported"),
    ("no template", "POST", "create", {"json": {"timeout": 5}}, 400, '"templateID" is missing'),
    ("unknown template", "POST", "create", {"json": {**BASE, "templateID": "nope"}}, 404, "not found"),
    ("too long", "POST", "create", {"json": {**BASE, "timeout": 90_000}}, 400, "cannot be greater than 24 hours"),
    ("hosts without deny", "POST", "create", {"json": {**BASE, "network": {"allowOut": ["a.b"]}}}, 400, "deny out"),
    ("no JSON", "POST", "create", {"content": b"{"}, 400, "invalid JSON"),
    ("unknown sandbox", "GET", "/sandboxes/inope", {}, 404, "doesn't exist"),
    ("deleting what is not", "DELETE", "/sandboxes/inope", {}, 404, "doesn't exist"),
    ("extending what is not", "POST", "/sandboxes/inope/timeout", {"json": {"timeout": 5}}, 404, "doesn't exist"),
    ("unknown parameter", "GET", "/v2/sandboxes?label=a", {}, 400, "unknown parameters"),
    ("odd memory", "POST", "/v3/templates", {"json": {"name": "x", "memoryMB": 513}}, 400, "even"),
    ("too many cores", "POST", "/v3/templates", {"json": {"name": "x", "cpuCount": 99}}, 400, "team limits"),
    ("a bad name", "POST", "/v3/templates", {"json": {"name": "UP/down"}}, 400, "invalid template name"),
    ("unknown alias", "GET", "/templates/aliases/nope", {}, 404, "not found"),
    ("unknown upload", "PUT", "/upload/nope", {"content": b"x"}, 403, "AccessDenied"),
]


@pytest.mark.parametrize(
    ("method", "path", "kw", "status", "text"), [row[1:] for row in REST], ids=[r[0] for r in REST]
)
def test_control_plane(cloud: Emulated, method: str, path: str, kw: dict[str, Any], status: int, text: str) -> None:
    answer = ask(cloud, method, cloud.face.create_path if path == "create" else path, **dict(kw))
    assert (answer.status_code, text in words(answer)) == (status, True), words(answer)
    assert status == 403 or answer.json()["code"] == status
    assert cloud.engine.alive() == 0


def test_over_quota(cloud: Emulated) -> None:
    cloud.engine.quota = 0
    answer = ask(cloud, "POST", cloud.face.create_path, json=BASE)
    assert (answer.status_code, answer.json()["code"]) == (429, 429)
    assert "maximum number of concurrent" in answer.json()["message"]


def test_paused_twice(cloud: Emulated, box: Any) -> None:
    assert ask(cloud, "POST", f"/sandboxes/{box.id}/pause", json={}).status_code == 204
    assert ask(cloud, "POST", f"/sandboxes/{box.id}/pause", json={}).status_code == 409
    assert ask(cloud, "POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 9}).status_code == 404


def start(message: Any, **kw: Any) -> dict[str, Any]:
    data = json.dumps(message).encode()
    return {"content": struct.pack(">BI", 0, len(data)) + data, **kw}


TRUE = {"process": {"cmd": "/bin/true"}}
NOBODY = {"process": {"pid": 4_000_000}}
DAEMON = [
    ("wrong token", "Start", start(TRUE, token="wrong"), 401, "unauthenticated"),
    ("no sandbox", "Start", start(TRUE, id="inope"), 502, "not found"),
    ("unknown field", "Start", start({**TRUE, "timeout": 5}), 200, "unknown field 'timeout'"),
    ("mistyped field", "Start", start({"process": {"cmd": "/bin/true", "args": "x"}}), 200, "invalid value for 'args'"),
    ("no program", "Start", start({"process": {"cmd": "/no/such"}}), 200, "no such file"),
    ("no folder", "Start", start({"process": {"cmd": "/bin/true", "cwd": "/no"}}), 200, "cwd '/no' does not exist"),
    ("no user", "Start", start(TRUE, user="nobody-here"), 401, "invalid username"),
    ("no envelope", "Start", {"content": b"{}"}, 200, "incomplete envelope"),
    ("unknown process", "Connect", start(NOBODY), 200, "not_found"),
    ("input for nobody", "SendInput", {"json": {**NOBODY, "input": {"stdin": "YQ=="}}}, 404, "not_found"),
    ("unknown signal", "SendSignal", {"json": {"process": {"pid": 1}, "signal": "SIGHUP"}}, 501, "invalid signal"),
    ("wrong content type", "Connect", {"content": b"{}", "type": "text/plain"}, 415, "unsupported content type"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kw", "status", "text"), [row[1:] for row in DAEMON], ids=[r[0] for r in DAEMON])
def test_daemon(cloud: Emulated, box: Any, call: str, kw: dict[str, Any], status: int, text: str) -> None:
    given = dict(kw)
    boundary = cloud.face.boundary
    headers = {
        boundary: given.pop("id", box.id),
        boundary.replace("-id", "-port"): "49983",
        "x-access-token": given.pop("token", box.data["envd"]),
    }
    if "content" in given:
        headers["content-type"] = given.pop("type", "application/connect+json")
    user = given.pop("user", "root")
    headers["authorization"] = f"Basic {base64.b64encode(f'{user}:'.encode()).decode()}"
    answer = ask(cloud, "POST", f"/process.Process/{call}", headers=headers, **given)
    assert (answer.status_code, text in words(answer)) == (status, True), words(answer)


@pytest.mark.parametrize(
    ("host", "token", "status", "text"),
    [
        ("8000-{id}", "", 403, "traffic access token"),
        ("8000-{id}", "ta_wrong", 403, "traffic access token"),
        ("8000-inope", "", 502, "not found"),
        ("8000-{id}", "right", 502, "port is not open"),
    ],
)
def test_ports(cloud: Emulated, box: Any, host: str, token: str, status: int, text: str) -> None:
    headers = {"host": f"{host.format(id=box.id)}.{cloud.face.domain}"}
    if token:
        headers[cloud.face.traffic] = box.data["traffic"] if token == "right" else token
    answer = ask(cloud, "GET", "/health", headers=headers)
    assert (answer.status_code, text in words(answer)) == (status, True), words(answer)


def test_private_image(cloud: Emulated) -> None:
    """A login that is missing or wrong fails the build, in its status."""
    for login in ({}, {"fromImageRegistry": {"type": "registry", "username": "user", "password": "wrong"}}):
        made = ask(cloud, "POST", "/v3/templates", json={"name": f"x{len(login)}"}).json()
        path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
        body = {"fromImage": cloud.engine.image("private/light"), "steps": [], "force": False, **login}
        assert ask(cloud, "POST", f"/v2{path}", json=body).status_code == 202
        status = ask(cloud, "GET", f"{path}/status").json()
        assert (status["status"], "authentication required" in status["reason"]["message"]) == ("error", True)
