"""A strict API server with one node, as the Kubernetes SDK knows it.

Bodies are held against the published schemas and the server's own rules (`kube_rules`); an unknown field is dropped
with a ``Warning`` header, under ``fieldValidation=Strict`` refused with 400. UNVERIFIED against a real server: the
wording of messages (reasons and codes are documented), and whether an exec waits for pipes that a background process
holds.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from openenv_sandbox.testing.faults import FakeApiError
from tests.emulators.engine import Face, PortRoute, Refusal, RequestHead
from tests.emulators.faces import kube_rules
from tests.emulators.faces.kube_pods import Kubelet, quota
from tests.emulators.faces.kube_store import KINDS, Object, Problem, Store
from tests.emulators.faces.kube_streams import Streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from starlette.requests import Request

    from tests.emulators.engine import Engine

TOKEN = "kube-token-0123456789"
NAMESPACE = "sandboxes"
QUERY = {
    "GET": {"labelSelector", "limit", "continue", "watch", "allowWatchBookmarks", "resourceVersion", "timeoutSeconds"},
    "POST": {"fieldValidation"},
    "PATCH": {"fieldValidation"},
    "DELETE": set(),
}


class KubeFace(Face):
    """Attributes:
    enforce: The Pod security standard that the namespace enforces; None for none.
    warnings: `Warning` headers that were sent.
    seen: Method and path of each request.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.store = Store(engine.clock.now)
        self.kubelet = Kubelet(engine, self.store)
        self.streams = Streams(self)
        self.enforce: str | None = None
        self.warnings: list[str] = []
        self.seen: list[tuple[str, str]] = []
        routes: list[Any] = []
        for kind in KINDS:
            root = "/apis/networking.k8s.io/v1" if kind == "networkpolicies" else "/api/v1"
            every = f"{root}/namespaces/{{namespace}}/{kind}"
            one = f"{every}/{{name}}"
            routes += [
                Route(every, self.guard(self.list, kind)),
                Route(every, self.guard(self.create, kind), methods=["POST"]),
                Route(one, self.guard(self.read, kind)),
                Route(one, self.guard(self.patch, kind), methods=["PATCH"]),
                Route(one, self.guard(self.delete, kind), methods=["DELETE"]),
            ]
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        routes += [
            Route(f"{pod}/log", self.guard(self.log, "pods")),
            WebSocketRoute(f"{pod}/exec", self.streams.exec),
            WebSocketRoute(f"{pod}/portforward", self.streams.portforward),
        ]
        self.app = Starlette(routes=routes)

    def route(self, head: RequestHead) -> PortRoute | Refusal | None:
        return None

    def authorize(self, header: str) -> None:
        """Whose token it is.

        Raises:
            Problem: 401.
        """
        if header != f"Bearer {TOKEN}":
            raise Problem(401, "Unauthorized", "Unauthorized")

    def problem(self, error: FakeApiError) -> Problem:
        """A fault in the server's words."""
        if error.status == 402:  # the account's end: more than the quota ever holds
            return Problem(403, "Forbidden", quota("x", 0))
        reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 429: "TooManyRequests"}
        headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
        return Problem(error.status or 500, reasons.get(error.status, "InternalError"), error.message, headers)

    def guard(self, handler: Callable[..., Awaitable[Response]], kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            self.seen.append((request.method, request.url.path))
            try:
                self.authorize(request.headers.get("authorization", ""))
                if request.path_params["namespace"] != NAMESPACE:
                    raise Problem(404, "NotFound", f'namespaces "{request.path_params["namespace"]}" not found')
                if unknown := set(request.query_params) - QUERY[request.method] - {"tailLines", "container"}:
                    raise Problem(400, "BadRequest", f"unknown parameters {sorted(unknown)}")
                return await handler(request, kind)
            except Problem as problem:
                return JSONResponse(problem.status(), problem.code, problem.headers)
            except kube_rules.Invalid as error:
                return JSONResponse(Problem(422, "Invalid", f"is invalid: {error}").status(), 422)
            except kube_rules.Undecodable as error:
                return JSONResponse(Problem(400, "BadRequest", str(error)).status(), 400)
            except FakeApiError as error:
                said = self.problem(error)
                return JSONResponse(said.status(), said.code, said.headers)

        return guarded

    async def create(self, request: Request, kind: str) -> Response:
        body = await self._body(request)
        api, name = KINDS[kind]
        body = {"apiVersion": api, "kind": name, **body}
        if (body["apiVersion"], body["kind"]) != (api, name):
            raise Problem(400, "BadRequest", f"the object is a {body['kind']}, not a {name}")
        headers = self._decode(request, body)
        kube_rules.check(body)
        if kind == "pods":
            self._admission(body)
            await self.engine.hook("create", "before", labels=body["metadata"].get("labels") or {})
        body["metadata"]["namespace"] = NAMESPACE
        item = self.store.add(kind, body)
        if kind == "pods":
            try:
                await self.kubelet.admit(item)
            except Problem:
                self.store.remove(kind, item["metadata"]["name"])
                raise
            item = copy.deepcopy(item)
            await self.engine.hook("create", "after")
        return JSONResponse(item, 201, headers)

    def _decode(self, request: Request, body: Object) -> dict[str, str]:
        unknown = kube_rules.unknown_fields(body)
        if not unknown:
            return {}
        said = ", ".join(f'unknown field "{name}"' for name in unknown)
        if request.query_params.get("fieldValidation") == "Strict":
            raise Problem(400, "BadRequest", f"strict decoding error: {said}")
        self.warnings.append(said)
        return {"Warning": f'299 - "{said}"'}

    def _admission(self, body: Object) -> None:
        if self.enforce != "restricted":
            return
        spec = body["spec"]
        security = spec["containers"][0].get("securityContext") or {}
        wrong = []
        if security.get("allowPrivilegeEscalation") is not False:
            wrong.append("allowPrivilegeEscalation != false")
        if "ALL" not in (security.get("capabilities") or {}).get("drop", []):
            wrong.append("unrestricted capabilities")
        if not security.get("runAsNonRoot"):
            wrong.append("runAsNonRoot != true")
        if ((spec.get("securityContext") or {}).get("seccompProfile") or {}).get("type") != "RuntimeDefault":
            wrong.append("seccompProfile")
        if wrong:
            name, why = body["metadata"]["name"], ", ".join(wrong)
            message = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {why}'
            raise Problem(403, "Forbidden", message)

    async def list(self, request: Request, kind: str) -> Response:
        query = request.query_params
        selector = query.get("labelSelector", "")
        if query.get("watch") == "true":
            return self._watch(request, kind, selector)
        # A reflector lists without a limit, to begin a watch: no look-up of anybody's.
        op = "find" if "oe-key=" in selector else "list"
        hooked = await self.engine.hook(op, "before") if kind == "pods" and "limit" in query else None
        page = self.store.page(kind, selector, int(query.get("limit", 0)), query.get("continue", ""), self._visible)
        if hooked is not None:
            await self.engine.hook(op, "after")
            if hooked.half is not None:
                text = json.dumps(page)
                return Response(text[: len(text) // 2], media_type="application/json")
        return JSONResponse(page)

    def _visible(self, item: Object) -> bool:
        box = self.kubelet.box(item["metadata"]["name"])
        return box is None or item.get("kind") != "Pod" or box.visible_at <= self.engine.clock.now()

    def _watch(self, request: Request, kind: str, selector: str) -> Response:
        query = request.query_params
        since = int(query.get("resourceVersion") or self.store.version)
        seconds = float(query.get("timeoutSeconds", 1800))

        async def lines() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(self.store.watch(kind, selector, since, seconds)) as events:
                async for event in events:
                    yield json.dumps(event).encode() + b"\n"

        return StreamingResponse(lines(), media_type="application/json")

    async def read(self, request: Request, kind: str) -> Response:
        if kind != "pods":
            return JSONResponse(self.store.get(kind, request.path_params["name"]))
        async with self.engine.hooked("info"):
            return JSONResponse(self.store.get(kind, request.path_params["name"]))

    async def patch(self, request: Request, kind: str) -> Response:
        if request.headers.get("content-type") != "application/merge-patch+json":
            raise Problem(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        item = self.store.get(kind, request.path_params["name"])
        merged = merge(copy.deepcopy(item), await self._body(request))
        status = merged.pop("status", None)
        headers = self._decode(request, merged)
        kube_rules.check_update({k: v for k, v in item.items() if k != "status"}, merged)
        item.update(merged)
        if status is not None:
            item["status"] = status
        self.store.changed(kind, item)
        if kind == "pods":
            self.kubelet.shorten(item)
        return JSONResponse(item, 200, headers)

    async def delete(self, request: Request, kind: str) -> Response:
        options = await self._body(request) if await request.body() else {}
        known = {"apiVersion", "kind", "gracePeriodSeconds", "preconditions", "propagationPolicy"}
        if unknown := set(options) - known:
            raise Problem(400, "BadRequest", f"unknown fields of DeleteOptions: {sorted(unknown)}")
        name = request.path_params["name"]
        if kind == "pods":
            async with self.engine.hooked("delete"):
                item = self.store.get(kind, name)
                if "deletionTimestamp" not in item["metadata"]:
                    await self.kubelet.delete(item)
            return JSONResponse(item)
        self.store.get(kind, name)
        self.store.remove(kind, name)
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def log(self, request: Request, kind: str) -> Response:
        name = request.path_params["name"]
        self.store.get("pods", name)
        tail = request.query_params.get("tailLines")
        return Response(await self.kubelet.log(name, int(tail) if tail else None), media_type="text/plain")

    async def _body(self, request: Request) -> Object:
        try:
            body = json.loads(await request.body())
        except ValueError:
            raise Problem(400, "BadRequest", "the body is no JSON") from None
        if not isinstance(body, dict):
            raise Problem(400, "BadRequest", "the body is no object")
        return body

    def left(self) -> Sequence[str]:
        """Secrets and NetworkPolicies without a Pod."""
        kinds, pods = ("secrets", "networkpolicies"), self.store.objects["pods"]
        return [f"{kind}/{name}" for kind in kinds for name in self.store.objects[kind] if name not in pods]


def merge(target: Object, patch: Object) -> Object:
    """A merge patch (RFC 7386)."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            target[name] = merge(dict(target.get(name) or {}), value)
        else:
            target[name] = value
    return target


def kubeconfig(folder: Path, url: str, *, token: str = TOKEN, name: str = "config", namespace: str = NAMESPACE) -> str:
    """A kubeconfig that leads to the emulator; returns its path."""
    path = folder / name
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "emulated",
                "clusters": [{"name": "emulated", "cluster": {"server": url}}],
                "users": [{"name": "somebody", "user": {"token": token}}],
                "contexts": [
                    {"name": "emulated",
                     "context": {"cluster": "emulated", "user": "somebody", "namespace": namespace}},
                ],
            }
        )
    )  # fmt: skip
    return str(path)
