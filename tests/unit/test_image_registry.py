"""The start configuration of a ref from its registry: index, manifest, config blob."""

from __future__ import annotations

import json
import platform
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import _remote_config, image
from openenv_sandbox.errors import ImageError
from openenv_sandbox.provider import ImageConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
CONFIG = {
    "Entrypoint": ["/init"],
    "Cmd": ["serve"],
    "Env": ["A=b=c", "EMPTY="],
    "User": "1000",
    "WorkingDir": "/app",
    "ExposedPorts": {"8000/tcp": {}, "53/udp": {}},
}
INDEX: dict[str, Any] = {
    "manifests": [
        {"digest": "sha256:other", "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": "sha256:attestation", "platform": {"os": "unknown", "architecture": "unknown"}},
        {"digest": "sha256:mine", "platform": {"os": "linux", "architecture": MACHINE}},
    ]
}
PAGES: dict[str, Any] = {
    "/v2/me/env/manifests/1": INDEX,
    "/v2/me/env/manifests/sha256:mine": {"config": {"digest": "sha256:blob"}},
    "/v2/me/env/blobs/sha256:blob": {"config": CONFIG, "os": "linux"},
    "/v2/me/odd/manifests/latest": ["no manifest"],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(PAGES.get(self.path, {})).encode()
        private = "/private/" in self.path
        self.send_response(401 if private else 200 if self.path in PAGES else 404)
        if private:
            self.send_header("www-authenticate", 'Basic realm="x"')
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, state_dir: Any) -> Iterator[str]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{state_dir}/no.sock")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_the_manifest_of_this_machine_is_chosen(registry: str) -> None:
    found = await image.resolve_config(image.parse(f"{registry}/me/env:1"))
    assert found == ImageConfig(("/init",), ("serve",), {"A": "b=c", "EMPTY": ""}, "1000", "/app", (8000,))


@pytest.mark.parametrize(
    ("name", "why"), [("me/gone:1", "not there"), ("me/private/x", "wants a login"), ("me/odd", "no image manifest")]
)
async def test_what_the_registry_said(registry: str, name: str, why: str) -> None:
    with pytest.raises(ImageError, match=why) as caught:
        await image.resolve_config(image.parse(f"{registry}/{name}"))
    assert "docker: ConnectError" in str(caught.value)
    assert "command=" in str(caught.value)


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("ubuntu", ("registry-1.docker.io", "library/ubuntu", "latest")),
        ("me/env:1", ("registry-1.docker.io", "me/env", "1")),
        ("docker.io/ubuntu:2", ("registry-1.docker.io", "library/ubuntu", "2")),
        ("ghcr.io/a/b@sha256:ff", ("ghcr.io", "a/b", "sha256:ff")),
        ("localhost:5000/a:t@sha256:ff", ("localhost:5000", "a", "sha256:ff")),
    ],
)
def test_the_parts_of_a_ref(ref: str, parts: tuple[str, str, str]) -> None:
    assert _remote_config.split(ref) == parts
