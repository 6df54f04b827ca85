"""A stand-in for the hub on loopback: the routes that pushing and copying use, strict about what it takes."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openenv_sandbox.testing import serve_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

TOKEN = "hf_test_token_of_me"
LFS_FROM = 10 << 20
COMMIT = "0123456789" * 4


@dataclass
class Space:
    sdk: str = "docker"
    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    hardware: str | None = None
    pull_requests: list[dict[str, bytes]] = field(default_factory=list)


@dataclass
class Hub:
    """What it holds, what it was asked, and what it refuses."""

    spaces: dict[str, Space] = field(default_factory=dict)
    datasets: dict[str, Space] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    fail: dict[str, int] = field(default_factory=dict)
    """Path suffix to the status it is answered with."""
    url: str = ""


class Refused(Exception):
    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status, self.code = status, code


def application(hub: Hub) -> Starlette:
    async def answer(request: Request) -> Response:
        path = request.url.path
        hub.requests.append((request.method, path))
        try:
            if path.startswith("/lfs/"):
                hub.blobs[path.rpartition("/")[2]] = await request.body()
                return Response(status_code=200)
            if path.startswith("/spaces/") and "/resolve/" in path:
                return resolved(hub, path)
            if request.headers.get("authorization") != f"Bearer {TOKEN}" and not public(hub, request.method, path):
                raise Refused(401, "Invalid credentials in Authorization header")
            for suffix, status in hub.fail.items():
                if path.endswith(suffix):
                    raise Refused(status, "as the test wants it")
            return await route(hub, request.method, path, request)
        except Refused as error:
            headers = {"x-error-message": str(error), **({"x-error-code": error.code} if error.code else {})}
            return JSONResponse({"error": str(error)}, error.status, headers=headers)

    methods = ["GET", "POST", "PUT", "DELETE", "HEAD"]
    return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])


def public(hub: Hub, method: str, path: str) -> bool:
    """Whether anybody may read it."""
    space = hub.spaces.get("/".join(path.strip("/").split("/")[2:4]))
    return method == "GET" and path.startswith("/api/spaces/") and (space is None or not space.private)


def resolved(hub: Hub, path: str) -> Response:
    """A file of a Space at its commit."""
    parts = path.strip("/").split("/")
    space, name = hub.spaces["/".join(parts[1:3])], "/".join(parts[5:])
    if parts[4] != COMMIT or name not in space.files:
        raise Refused(404, "Entry not found", "EntryNotFound")
    content = space.files[name]
    headers = {"etag": f'"{hashlib.sha256(content).hexdigest()}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
    return Response(content, headers=headers)


async def route(hub: Hub, method: str, path: str, request: Request) -> Response:
    parts = path.strip("/").split("/")
    if (method, path) == ("GET", "/api/whoami-v2"):
        return JSONResponse({"type": "user", "name": "me", "orgs": []})
    if (method, path) == ("POST", "/api/repos/create"):
        return create(hub, await request.json())
    if (method, path) == ("POST", "/api/validate-yaml"):
        body = await request.json()
        front = yaml.safe_load(body["content"].split("---")[1])
        if body["repoType"] == "dataset" and not front.get("configs"):
            raise Refused(400, "the front matter of README.md names no files")
        if body["repoType"] == "space" and front.get("sdk") not in ("docker", "gradio", "static"):
            raise Refused(400, "the front matter of README.md is not that of a Space")
        return JSONResponse({"errors": [], "warnings": []})
    if (method, path) == ("DELETE", "/api/repos/delete"):
        wanted = await request.json()
        getattr(hub, f"{wanted['type']}s").pop(f"{wanted.get('organization') or 'me'}/{wanted['name']}")
        return Response(status_code=200)
    if parts[0] in ("spaces", "datasets") and parts[2].endswith(".git"):
        return lfs(hub, await request.json())
    if parts[0] != "api" or parts[1] not in ("spaces", "datasets") or len(parts) < 4:
        raise Refused(404, f"no route {method} {path}")
    repo_id, rest = "/".join(parts[2:4]), parts[4:]
    space = getattr(hub, parts[1]).get(repo_id)
    if parts[1] == "datasets" and rest[:1] not in ([], ["preupload"], ["commit"]):
        raise Refused(404, f"no route {method} {path}")
    if space is None:
        raise Refused(404, "Repository not found", "RepoNotFound")
    if method == "GET" and rest[:1] in ([], ["revision"]):
        if rest and rest[1] not in ("main", "v1", COMMIT):
            raise Refused(404, "Invalid rev id", "RevisionNotFound")
        return JSONResponse(
            {
                "id": repo_id,
                "sha": COMMIT,
                "sdk": space.sdk,
                "private": space.private,
                "siblings": [{"rfilename": name} for name in space.files],
            }
        )
    if method == "GET" and rest == ["tree", COMMIT]:
        return JSONResponse(
            [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in space.files.items()
            ]
        )
    if method == "POST" and rest[:1] == ["preupload"]:
        wanted = (await request.json())["files"]
        files = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["size"] > LFS_FROM else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for one in wanted
        ]
        return JSONResponse({"files": files})
    if method == "POST" and rest[:1] == ["commit"]:
        return commit(hub, repo_id, space, await request.body(), request.query_params.get("create_pr"))
    if method == "POST" and rest in (["secrets"], ["variables"]):
        body = await request.json()
        getattr(space, rest[0])[body["key"]] = body["value"]
        return JSONResponse({name: {"value": value} for name, value in space.variables.items()})
    if method == "POST" and rest == ["hardware"]:
        space.hardware = (await request.json())["flavor"]
        return JSONResponse({"stage": "BUILDING", "hardware": {"requested": space.hardware}})
    if method == "POST" and rest == ["duplicate"]:
        body = await request.json()
        if body["repository"] in hub.spaces:
            raise Refused(409, "You already created this space repo")
        hub.spaces[body["repository"]] = Space(
            private=bool(body.get("private")) or body.get("visibility") == "private",
            files=dict(space.files),
            variables={one["key"]: one["value"] for one in body.get("variables", [])},
            secrets={one["key"]: one["value"] for one in body.get("secrets", [])},
            hardware=body.get("hardware"),
        )
        return JSONResponse({"url": f"{hub.url}/spaces/{body['repository']}"})
    raise Refused(404, f"no route {method} {path}")


def create(hub: Hub, body: dict[str, Any]) -> Response:
    known = {"name", "organization", "type", "sdk", "private", "hardware", "secrets", "variables", "visibility"}
    kind = body.get("type")
    if kind == "dataset":
        known = {"name", "organization", "type", "private", "visibility"}
    if set(body) - known or kind not in ("space", "dataset"):
        raise Refused(400, f"unexpected fields: {sorted(set(body) - known)}")
    owner = body.get("organization") or "me"
    if owner not in ("me", "our-org"):
        raise Refused(403, "You don't have the rights to create a space under this namespace")
    repo_id = f"{owner}/{body['name']}"
    held = hub.spaces if kind == "space" else hub.datasets
    if repo_id in held:
        raise Refused(409, f"You already created this {kind} repo")
    held[repo_id] = Space(
        sdk=body["sdk"] if kind == "space" else "",
        private=bool(body.get("private")) or body.get("visibility") == "private",
        variables={one["key"]: one["value"] for one in body.get("variables") or []},
        secrets={one["key"]: one["value"] for one in body.get("secrets") or []},
        hardware=body.get("hardware"),
    )
    return JSONResponse({"url": f"{hub.url}/{kind}s/{repo_id}", "name": repo_id, "id": "1"})


def lfs(hub: Hub, body: dict[str, Any]) -> Response:
    objects = [
        {
            "oid": one["oid"],
            "size": one["size"],
            "authenticated": True,
            "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}", "header": {}}},
        }
        for one in body["objects"]
    ]
    return JSONResponse({"transfer": "basic", "objects": objects})


def commit(hub: Hub, repo_id: str, space: Space, body: bytes, create_pr: str | None) -> Response:
    files = dict(space.files)
    for line in body.splitlines():
        entry = json.loads(line)
        value = entry["value"]
        if entry["key"] == "file":
            assert value["encoding"] == "base64"
            content = base64.b64decode(value["content"])
            if len(content) > LFS_FROM:
                raise Refused(413, "a file of that size belongs into LFS")
            files[value["path"]] = content
        elif entry["key"] == "lfsFile":
            blob = hub.blobs.get(value["oid"])
            if blob is None or hashlib.sha256(blob).hexdigest() != value["oid"] or len(blob) != value["size"]:
                raise Refused(400, "the LFS object was not uploaded")
            files[value["path"]] = blob
        elif entry["key"] == "deletedFile":
            del files[value["path"]]
        elif entry["key"] != "header":
            raise Refused(400, f"unknown key {entry['key']}")
    answer: dict[str, Any] = {"commitUrl": f"{hub.url}/spaces/{repo_id}/commit/1", "commitOid": "1" * 40}
    if create_pr:
        space.pull_requests.append(files)
        answer["pullRequestUrl"] = f"{hub.url}/spaces/{repo_id}/discussions/{len(space.pull_requests)}"
    else:
        space.files = files
    return JSONResponse(answer)


@contextmanager
def served() -> Iterator[Hub]:
    hub = Hub()
    with serve_app(application(hub)) as url:
        hub.url = url
        yield hub
