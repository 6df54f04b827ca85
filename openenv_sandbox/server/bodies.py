"""How large a request's body may be: as large as a message on ``/ws``, since it is held in memory as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from openenv_sandbox.server.access import route_of
from openenv_sandbox.wire.limits import MIB, SERVER_SETTING

if TYPE_CHECKING:
    from openenv_sandbox.server.access import App, Message, Receive, Send

LIMITED = frozenset(("/mcp", "/reset", "/step", "/web/reset", "/web/step"))
TASKS = frozenset(("tasks", "num_tasks", "task", "task_range"))


class BodyLimit:
    """Answers 413 to a body that is too large, before it is read where its length is told. Other routes are not ours.

    Args:
        app: What is protected.
        limit: Most bytes.
    """

    def __init__(self, app: App, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._text = f"The body is larger than {limit / MIB:g} MiB; {SERVER_SETTING} sets how large it may be."

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or not _ours(route_of(scope)):
            await self._app(scope, receive, send)
            return
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if told.isdigit() and int(told[:20]) > self._limit:
            await JSONResponse({"detail": self._text}, status_code=413)(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise HTTPException(413, self._text)
            return message

        await self._app(scope, counted, send)


def _ours(path: str) -> bool:
    return path in LIMITED or (path.count("/") == 2 and path.rpartition("/")[2] in TASKS)
