"""The emulated data plane refuses what the service refuses, in its error shape; asked without provider and SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("azure.containerapps.sandbox")

from tests.emulators.engine import Engine, Front
from tests.emulators.faces.aca_face import API, GROUP, PORTS, RESOURCES, SUBSCRIPTION, TOKEN, AcaFace

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.emulator

BASE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCES}/sandboxGroups/{GROUP}"
SANDBOX: dict[str, Any] = {
    "sourcesRef": {"diskImage": {"name": "ubuntu", "isPublic": True}},
    "resources": {"cpu": "1000m", "memory": "2048Mi"},
    "lifecycle": {"autoSuspendPolicy": {"enabled": True, "interval": 900, "mode": "Memory"}},
}
NO = "00000000-dead"

# name: method, path, JSON body, status, code, part of the message
REFUSED: dict[str, tuple[str, str, Any, int, str, str]] = {
    "unknown field": ("PUT", "/sandboxes", {**SANDBOX, "gpu": 1}, 400, "InvalidRequestContent", "body.gpu"),
    "mistyped labels": ("PUT", "/sandboxes", {**SANDBOX, "labels": {"a": 1}}, 400, "InvalidRequestContent", "labels"),
    "mistyped environment": (
        "PUT", "/sandboxes", {**SANDBOX, "environment": [["A", "b"]]}, 400, "InvalidRequestContent", "environment",
    ),
    "registry ref as source": (
        "PUT", "/sandboxes", {**SANDBOX, "sourcesRef": {"image": "me/env:1"}}, 400, "InvalidRequestContent", "image",
    ),
    "no source": ("PUT", "/sandboxes", {**SANDBOX, "sourcesRef": {}}, 400, "InvalidRequestContent", "sourcesRef"),
    "no lifecycle": (
        "PUT", "/sandboxes", {**SANDBOX, "lifecycle": {}}, 400, "InvalidRequestContent", "autoSuspendPolicy",
    ),
    "unknown disk": (
        "PUT", "/sandboxes", {**SANDBOX, "sourcesRef": {"diskImage": {"id": NO}}}, 404, "DiskImageNotFound", NO,
    ),
    "cores as a number": (
        "PUT", "/sandboxes", {**SANDBOX, "resources": {"cpu": 1, "memory": "2048Mi"}},
        400, "InvalidRequestContent", "resources.cpu",
    ),
    "too much memory for its cores": (
        "PUT", "/sandboxes", {**SANDBOX, "resources": {"cpu": "1000m", "memory": "4096Mi"}},
        400, "InvalidRequestContent", "2048Mi",
    ),
    "too many cores": (
        "PUT", "/sandboxes", {**SANDBOX, "resources": {"cpu": "17000m", "memory": "2048Mi"}},
        400, "InvalidRequestContent", "16000m",
    ),
    "unknown egress action": (
        "PUT", "/sandboxes", {**SANDBOX, "egressPolicy": {"defaultAction": "Block"}},
        400, "InvalidRequestContent", "Allow, Deny",
    ),
    "port out of range": (
        "PUT", "/sandboxes", {**SANDBOX, "ports": [{"port": 70000}]}, 400, "InvalidRequestContent", "65535",
    ),
    "source rule that is no network": (
        "PUT", "/sandboxes",
        {**SANDBOX, "ports": [{"port": 80, "ipAccessControl": {"defaultAction": "Deny", "rules": [
            {"name": "x", "action": "Allow", "priority": 1, "sourceCidrs": ["10.0.0.5/8"]}]}}]},
        400, "InvalidRequestContent", "10.0.0.5/8",
    ),
    "no JSON": ("PUT", "/sandboxes", b"{", 400, "InvalidRequestContent", "JSON"),
    "unknown sandbox": ("GET", f"/sandboxes/{NO}", None, 404, "SandboxNotFound", NO),
    "delete of nothing": ("DELETE", f"/sandboxes/{NO}", None, 404, "SandboxNotFound", NO),
    "exec in nothing": (
        "POST", f"/sandboxes/{NO}/executeShellCommand", {"command": ":"}, 404, "SandboxNotFound", NO,
    ),
    "lifecycle of nothing": ("POST", f"/sandboxes/{NO}/lifecycle", {}, 404, "SandboxNotFound", NO),
    "disk image of nothing": ("PUT", "/diskimages", {"labels": {}}, 400, "InvalidRequestContent", "image.base"),
    "disk image with a Dockerfile": (
        "PUT", "/diskimages", {"image": {"base": "x"}, "dockerfile": "FROM x"},
        400, "InvalidRequestContent", "dockerfile",
    ),
    "unknown disk image": ("GET", f"/diskimages/{NO}", None, 404, "DiskImageNotFound", "not found"),
    "unknown public image": ("GET", "/diskimages/public/windows", None, 404, "DiskImageNotFound", "windows"),
}  # fmt: skip


@pytest.fixture
def service(engine: Engine) -> Iterator[tuple[AcaFace, Front, httpx.Client]]:
    face = AcaFace(engine)
    context, authority = engine.tls(f"*.{PORTS}")
    with Front(engine, face, tls=context) as front:
        import ssl

        with httpx.Client(
            base_url=front.url,
            verify=ssl.create_default_context(cafile=str(authority)),
            headers={"authorization": f"Bearer {TOKEN}"},
            params={"api-version": API},
            trust_env=False,
        ) as client:
            yield face, front, client


Service = tuple[AcaFace, Front, httpx.Client]


def send(client: httpx.Client, method: str, path: str, body: Any = None, **kw: Any) -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
    return client.request(method, BASE + path, **content, **kw)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(service: Service, engine: Engine, name: str) -> None:
    method, path, body, status, code, text = REFUSED[name]
    reply = send(service[2], method, path, body)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code
    assert text in reply.json()["error"]["message"]
    assert engine.alive() == 0


@pytest.mark.parametrize("token", ["", "Bearer wrong", f"Basic {TOKEN}"])
def test_no_login(service: Service, token: str) -> None:
    reply = send(service[2], "PUT", "/sandboxes", SANDBOX, headers={"authorization": token})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "InvalidAuthenticationToken")
    assert reply.headers["www-authenticate"].startswith("Bearer ")


def test_another_version(service: Service) -> None:
    reply = send(service[2], "GET", "/sandboxes", params={"api-version": "2025-01-01"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "UnsupportedApiVersion")


def test_another_group(service: Service) -> None:
    reply = service[2].get(BASE.replace(GROUP, "elsewhere") + "/sandboxes")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "ResourceNotFound")


def test_over_the_quota(service: Service, engine: Engine) -> None:
    engine.quota = 0
    try:
        reply = send(service[2], "PUT", "/sandboxes", SANDBOX)
    finally:
        engine.quota = None
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "SandboxLimitReached")


def test_a_suspended_one_takes_no_command(service: Service, engine: Engine) -> None:
    id = send(service[2], "PUT", "/sandboxes", {**SANDBOX, "entrypoint": ["sleep", "999"]}).json()["id"]
    try:
        assert send(service[2], "POST", f"/sandboxes/{id}/stop").status_code == 204
        assert send(service[2], "GET", f"/sandboxes/{id}").json()["stateDetails"]["stoppedReason"] == "UserStopped"
        reply = send(service[2], "POST", f"/sandboxes/{id}/executeShellCommand", {"command": ":"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "SandboxNotRunning")
    finally:
        engine.call(engine.delete(id))


PORT_RULES: dict[str, tuple[dict[str, Any] | None, int]] = {
    "no such port": (None, 404),
    "without anonymous": ({"port": 8000}, 302),
    "from another network": (
        {"port": 8000, "auth": {"anonymous": True}, "ipAccessControl": {"defaultAction": "Deny", "rules": [
            {"name": "x", "action": "Allow", "priority": 1, "sourceCidrs": ["10.0.0.0/8"]}]}},
        403,
    ),
    "nobody listens": ({"port": 8000, "auth": {"anonymous": True}}, 502),
}  # fmt: skip


@pytest.mark.parametrize("name", PORT_RULES)
def test_port_is_refused(service: Service, engine: Engine, name: str) -> None:
    _, front, client = service
    port, status = PORT_RULES[name]
    body = {**SANDBOX, "entrypoint": ["sleep", "999"], "ports": [port] if port else []}
    id = send(client, "PUT", "/sandboxes", body).json()["id"]
    try:
        host = f"{id}--8000.{PORTS}"
        request = client.build_request("GET", f"{front.url}/health", headers={"host": host})
        request.extensions = {**request.extensions, "sni_hostname": host}
        assert client.send(request).status_code == status
    finally:
        engine.call(engine.delete(id))
