"""A registry on the loopback that a daemon can push images to, with or without a login."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class PushRegistry:
    """``with PushRegistry() as registry: registry.address``.

    Attributes:
        manifests: ``repository:tag`` (and ``repository@digest``) to what was put.
        puts: Every name under which a manifest was put, in order.
        login: ``(user, password)`` that is wanted; None for none.
    """

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytearray] = {}
        self.puts: list[str] = []
        self.login: tuple[str, str] | None = None
        outer = self

        class Handler(_Handler):
            registry = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> PushRegistry:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: PushRegistry
    protocol_version = "HTTP/1.1"

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _any(self) -> None:
        body, registry = self._body(), self.registry
        if registry.login is not None:
            want = "Basic " + base64.b64encode(":".join(registry.login).encode()).decode()
            if self.headers.get("authorization") != want:
                return self._answer(401, b"{}", www_authenticate='Basic realm="r"')
        split = urlsplit(self.path)
        found = re.fullmatch(r"/v2/(.+)/(blobs/uploads|blobs|manifests)/([^/]*)", split.path)
        if found is None:
            return self._answer(200 if split.path == "/v2/" else 404, b"{}")
        name, kind, rest = found.groups()
        if kind == "blobs/uploads":
            return self._upload(name, rest, body, parse_qs(split.query))
        if kind == "manifests" and self.command == "PUT":
            digest = "sha256:" + hashlib.sha256(body).hexdigest()
            registry.puts.append(f"{name}:{rest}")
            registry.manifests[f"{name}:{rest}"] = registry.manifests[f"{name}:{digest}"] = body
            return self._answer(201, docker_content_digest=digest)
        data = registry.manifests.get(f"{name}:{rest}") if kind == "manifests" else registry.blobs.get(rest)
        if data is None:
            return self._answer(404, b"{}")
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        media: Any = json.loads(data).get("mediaType") if kind == "manifests" else None
        return self._answer(200, data, docker_content_digest=digest, content_type=media or "application/octet-stream")

    def _upload(self, name: str, rest: str, body: bytes, query: dict[str, list[str]]) -> None:
        registry = self.registry
        if self.command == "POST":
            rest = f"u{len(registry.uploads)}"
            registry.uploads[rest] = bytearray()
            return self._answer(202, location=f"/v2/{name}/blobs/uploads/{rest}", docker_upload_uuid=rest)
        registry.uploads[rest] += body
        size = len(registry.uploads[rest])
        if self.command == "PUT":
            registry.blobs[query["digest"][0]] = bytes(registry.uploads.pop(rest))
            return self._answer(201, docker_content_digest=query["digest"][0])
        where = f"/v2/{name}/blobs/uploads/{rest}"
        return self._answer(202, location=where, range=f"0-{size - 1}", docker_upload_uuid=rest)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = _any  # names of the base class

    def log_message(self, *_: object) -> None:
        return
