"""A registry on the loopback that knows the engine's images: manifests and config blobs, no layers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from typing import TYPE_CHECKING

from ._http import BadRequest, RequestHead, answer, read_head

if TYPE_CHECKING:
    from ._engine import Engine
    from ._images import EmuImage

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LOGIN = ("user", "registry-pass")
"""Who may read what lies under ``private/``."""

_PATH = re.compile(r"/v2/(?P<name>[a-z0-9._/-]+)/(?P<kind>manifests|blobs)/(?P<ref>[\w.:-]+)\Z")


def digest(data: bytes) -> str:
    """Content address."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blobs(image: EmuImage) -> tuple[bytes, bytes]:
    """Manifest and config of an image."""
    config = json.dumps(image.oci_config(), sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest(config), "size": len(config)},
        "layers": [],
    }
    return json.dumps(manifest, sort_keys=True).encode(), config


class Registry:
    """Serves what `Engine.images` holds under this registry's address."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.address = ""
        self.requests: list[RequestHead] = []

    async def start(self) -> str:
        """Listen; returns ``127.0.0.1:PORT``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    async def stop(self) -> None:
        """Listen no more."""
        self._server.close()

    def by_digest(self, ref: str) -> EmuImage | None:
        """The image that ``name@sha256:…`` means."""
        name, at, wanted = ref.partition("@")
        if not at:
            return None
        name = re.sub(r":[\w.-]+\Z", "", name) if name.rpartition("/")[2].count(":") else name
        images = (i for i in self.engine.images.values() if i.ref.rpartition(":")[0] == name)
        return next((image for image in images if digest(blobs(image)[0]) == wanted), None)

    def digest_of(self, ref: str) -> str:
        """The manifest digest of an image."""
        return digest(blobs(self.engine.images[ref])[0])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, BadRequest):
            head = await read_head(reader)
            if head is not None:
                self.requests.append(head)
                status, headers, body = self._answer(head)
                writer.write(answer(status, headers, body, head=head.method == "HEAD"))
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    def _answer(self, head: RequestHead) -> tuple[int, dict[str, str], bytes]:
        if head.method not in ("GET", "HEAD"):
            return _error(405, "UNSUPPORTED", "read only")
        if head.path in ("/v2", "/v2/"):
            return 200, {"content-type": "application/json"}, b"{}"
        found = _PATH.match(head.path)
        if found is None:
            return _error(404, "NAME_UNKNOWN", head.path)
        if found["name"].startswith("private/") and not _knows(head):
            status, headers, body = _error(401, "UNAUTHORIZED", "login required")
            return status, {**headers, "www-authenticate": 'Basic realm="registry"'}, body
        return self._manifest(found) if found["kind"] == "manifests" else self._blob(found)

    def _of(self, name: str) -> list[EmuImage]:
        prefix = f"{self.address}/{name}:"
        return [image for ref, image in self.engine.images.items() if ref.startswith(prefix)]

    def _manifest(self, found: re.Match[str]) -> tuple[int, dict[str, str], bytes]:
        for image in self._of(found["name"]):
            manifest, _ = blobs(image)
            if found["ref"] in (image.ref.rpartition(":")[2], digest(manifest)):
                return 200, {"content-type": MANIFEST, "docker-content-digest": digest(manifest)}, manifest
        return _error(404, "MANIFEST_UNKNOWN", f"{found['name']}:{found['ref']}")

    def _blob(self, found: re.Match[str]) -> tuple[int, dict[str, str], bytes]:
        for image in self._of(found["name"]):
            _, config = blobs(image)
            if digest(config) == found["ref"]:
                return 200, {"content-type": "application/octet-stream", "docker-content-digest": found["ref"]}, config
        return _error(404, "BLOB_UNKNOWN", found["ref"])


def _knows(head: RequestHead) -> bool:
    wanted = base64.b64encode(":".join(LOGIN).encode()).decode()
    return head.get("authorization") == f"Basic {wanted}"


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, str], bytes]:
    body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
    return status, {"content-type": "application/json"}, body
