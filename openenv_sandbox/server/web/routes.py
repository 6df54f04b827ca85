"""The routes of the page."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from openenv_sandbox.errors import CapacityError, EnvironmentError_
from openenv_sandbox.server.web.assets import FRAME_POLICY, assets, page_headers
from openenv_sandbox.server.web.episode import told
from openenv_sandbox.server.web.viewer import Viewer
from openenv_sandbox.server.web.visitors import SHARED, NotReset, Visitor, Visitors
from openenv_sandbox.wire import codec, messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from openenv_sandbox.server.environment import EnvironmentMetadata
    from openenv_sandbox.server.web.door import Door

logger = logging.getLogger("openenv.server")

TRY_AGAIN = 1013
"""Close code for a tab that is too slow; it connects again and is told everything."""


class Pages:
    """What the routes need.

    Args:
        visitors: Who is there.
        door: Names visitors by their cookies.
        metadata: What ``/web/metadata`` answers.
        config: What the page must know before the first reset, as JSON types.
        home: Where ``/web`` leads when it is not our page; empty for our page.
    """

    def __init__(
        self,
        visitors: Visitors,
        door: Door,
        metadata: EnvironmentMetadata,
        config: Mapping[str, Any],
        home: str = "",
    ) -> None:
        self.visitors = visitors
        self.home = home
        self._door = door
        self._metadata = codec.dumps(codec.fields_of(metadata))
        self._config = dict(config)
        self._static = assets()

    def add_to(self, app: FastAPI) -> None:
        """Add all routes; the page itself is one of them, which an environment may remove and replace."""
        hidden: dict[str, Any] = {"include_in_schema": False}
        app.get("/", **hidden)(self.get_root)
        app.get("/web", **hidden)(self.get_page)
        app.get("/web/metadata", **hidden)(self.get_metadata)
        app.post("/web/reset", **hidden)(self.post_reset)
        app.post("/web/step", **hidden)(self.post_step)
        app.get("/web/state", **hidden)(self.get_state)
        app.post("/web/session", **hidden)(self.post_session)
        app.post("/web/close", **hidden)(self.post_close)
        app.get("/web/history/{number}", **hidden)(self.get_history)
        app.get("/web/export", **hidden)(self.get_export)
        app.get("/web/frame/{name}", **hidden)(self.get_frame)
        app.get("/web/static/{name}", **hidden)(self.get_static)
        app.websocket("/ws/ui")(self.live)

    # -- files --------------------------------------------------------------------------------------------------

    async def get_root(self, request: Request) -> Response:
        """Lead to the page, whosever it is."""
        return RedirectResponse(request.scope.get("root_path", "") + "/web", status_code=307)

    async def get_page(self, request: Request) -> Response:
        """The page."""
        if self.home:
            return RedirectResponse(request.scope.get("root_path", "") + self.home, status_code=307)
        return self._file("index.html")

    async def get_static(self, name: str) -> Response:
        """A file of the page."""
        return self._file(name)

    def _file(self, name: str) -> Response:
        if name not in self._static:
            return _problem(404, f"There is no file {name}.")
        content, kind = self._static[name]
        return Response(content, media_type=kind, headers=page_headers())

    async def get_metadata(self) -> Response:
        """What the environment says about itself."""
        return _json(self._metadata)

    # -- the visitor --------------------------------------------------------------------------------------------

    async def post_session(self, request: Request) -> Response:
        """Who the visitor is, and all the page needs to know before the first reset.

        The cookie is given here and not with the page: a page that was opened from another site comes without the
        cookie that the browser has, and a new one would take the visitor's environment from him.
        """
        visitor_id = self._door.visitor(request.headers)
        cookie = None
        if visitor_id is None:
            visitor_id, cookie = self._door.new_cookie(request.headers, request.url.scheme)
        response = _json(codec.dumps({**self._config, "watch": self.visitors.watch_name(visitor_id)}))
        if cookie is not None:
            response.headers["set-cookie"] = cookie
        return response

    def _visitor_id(self, request: Request) -> tuple[str, str | None]:
        """Who sends a request, and the cookie to give him; all without a cookie are one visitor."""
        visitor_id = self._door.visitor(request.headers)
        if visitor_id is not None:
            return visitor_id, None
        if self._door.has_cookie(request.headers):
            return self._door.new_cookie(request.headers, request.url.scheme)
        return SHARED, None

    def _looked_at(self, request: Request) -> Visitor | None:
        watch = request.query_params.get("watch")
        return self.visitors.find(self._visitor_id(request)[0]) if watch is None else self.visitors.watched(watch)

    # -- what he does -------------------------------------------------------------------------------------------

    async def post_reset(self, request: Request) -> Response:
        """Start an episode; an optional JSON object holds what goes to the environment's reset."""
        return await self._act(request, lambda visitor, body: visitor.reset(body or {}))

    async def post_step(self, request: Request) -> Response:
        """Take an action: ``{"action": {…}}``, or ``{"message": …}`` for one that the environment makes of it."""

        def act(visitor: Visitor, body: Any) -> Awaitable[bytes]:
            return visitor.say(body["message"]) if "message" in body else visitor.step(body.get("action") or {})

        return await self._act(request, act)

    async def get_state(self, request: Request) -> Response:
        """The environment's state."""
        visitor_id, _ = self._visitor_id(request)
        visitor = self.visitors.get(visitor_id)
        try:
            return _json(await visitor.state())
        except NotReset as error:
            return _problem(409, error.message, code=error.code)
        except RuntimeError as error:
            return _problem(409, str(error))
        except Exception as error:
            logger.debug("state failed", exc_info=error)
            return _problem(500, told(error), code=messages.EXECUTION_ERROR)
        finally:
            visitor.rest()

    async def post_close(self, request: Request) -> Response:
        """Close the visitor's environment and free its slot."""
        visitor = self.visitors.find(self._visitor_id(request)[0])
        if visitor is not None:
            visitor.end("The environment was closed. Reset starts a new one.")
        return Response(status_code=204)

    async def _act(self, request: Request, act: Callable[[Visitor, Any], Awaitable[bytes]]) -> Response:
        raw = await request.body()
        try:
            body = codec.loads(raw) if raw.strip() else {}
        except ValueError as error:
            return _problem(422, f"The body is not JSON: {error}")
        if body is not None and not isinstance(body, dict):
            return _problem(422, "The body must be a JSON object.")
        visitor_id, cookie = self._visitor_id(request)
        visitor = self.visitors.get(visitor_id)
        try:
            response = await _answered(act(visitor, body or {}))
        finally:
            visitor.rest()
        if cookie is not None:
            response.headers["set-cookie"] = cookie
        return response

    # -- what there is to see -----------------------------------------------------------------------------------

    async def get_history(self, number: int, request: Request) -> Response:
        """The observation of one step of the episode; 0 is that of the reset."""
        visitor = self._looked_at(request)
        raw = None if visitor is None else visitor.episode.observation(number)
        return _problem(404, "That observation is not remembered.") if raw is None else _json(raw)

    async def get_export(self, request: Request) -> Response:
        """The episode as JSON lines: the reset, then every step with its observation."""
        visitor = self._looked_at(request)
        lines = [] if visitor is None else await asyncio.to_thread(visitor.episode.lines)
        if not lines:
            return _problem(404, "There is no episode yet.")
        text = await asyncio.to_thread(lambda: b"".join(codec.dumps(line) + b"\n" for line in lines))
        headers = {"content-disposition": 'attachment; filename="episode.jsonl"', "x-content-type-options": "nosniff"}
        return Response(text, media_type="application/x-ndjson", headers=headers)

    async def get_frame(self, name: str, request: Request) -> Response:
        """HTML of the environment, for a frame that runs no scripts."""
        visitor = self._looked_at(request)
        if visitor is None or visitor.view is None or not visitor.view.html or visitor.frame != name:
            return _problem(404, "The environment has moved on.")
        headers = {
            "content-security-policy": FRAME_POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
        }
        return Response(visitor.view.html, media_type="text/html; charset=utf-8", headers=headers)

    async def live(self, websocket: WebSocket) -> None:
        """Push every change; what the tab sends is ignored."""
        watch = websocket.query_params.get("watch")
        headers: list[tuple[bytes, bytes]] = []
        if watch is None:
            visitor_id = self._door.visitor(websocket.headers)
            visitor = self.visitors.get(SHARED if visitor_id is None else visitor_id)
        else:
            found = self.visitors.watched(watch)
            if found is None:
                await websocket.close(code=1008, reason="nobody shares an episode under this link any more")
                return
            visitor = found
        await websocket.accept(headers=headers)
        viewer = Viewer(live="live" in websocket.query_params, owner=watch is None)
        visitor.join(viewer)
        sender = asyncio.ensure_future(_send(websocket, viewer))
        reader = asyncio.ensure_future(_read(websocket))
        try:
            await asyncio.wait((sender, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            visitor.part(viewer)
            sender.cancel()
            reader.cancel()
            # Not gather: it loses the word by which anyio knows a cancellation of its own.
            for task in (await asyncio.wait((sender, reader)))[0]:
                if not task.cancelled() and (error := task.exception()) is not None:
                    logger.debug("a tab is gone: %r", error)


async def _send(websocket: WebSocket, viewer: Viewer) -> None:
    while (message := await viewer.queue.get()) is not None:
        await websocket.send_text(message.decode())
    await websocket.close(code=TRY_AGAIN, reason="too slow")


async def _read(websocket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return


async def _answered(work: Awaitable[bytes]) -> Response:
    try:
        return _json(await work)
    except ValidationError as error:
        return _problem(422, orjson.loads(error.json(include_url=False)), code=messages.VALIDATION_ERROR)
    except NotReset as error:
        return _problem(409, error.message, code=error.code)
    except CapacityError as error:
        return _problem(503, error.message, code=error.code, **error.data)
    except EnvironmentError_ as error:
        return _problem(500, error.message, code=error.code)
    except Exception as error:
        logger.debug("the environment raised", exc_info=error)
        return _problem(500, told(error), code=messages.EXECUTION_ERROR)


def _json(body: bytes) -> Response:
    return Response(
        body, media_type="application/json", headers={"cache-control": "no-store", "x-content-type-options": "nosniff"}
    )


def _problem(status: int, detail: Any, **extra: Any) -> Response:
    return Response(codec.dumps({"detail": detail, **extra}), status_code=status, media_type="application/json")
