"""A stand-in for the services of language models on loopback: both languages, every request kept."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

from openenv_sandbox.testing import serve_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.responses import Response

KEY = "the-key-of-a-service"


@dataclass
class Llm:
    """What it was asked. It switches the lamp on, always.

    Attributes:
        hold: Number of the request that is not answered before `released` is set.
        held: Set when that request is there.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    hold: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""


def application(llm: Llm) -> Starlette:
    async def take(request: Request, key: str | None) -> tuple[dict[str, Any], Response | None]:
        body = await request.json()
        if key != KEY:
            return body, JSONResponse({"error": "no such key"}, 401)
        llm.requests.append(body)
        if len(llm.requests) == llm.hold:
            llm.held.set()
            await run_in_threadpool(llm.released.wait, 60)
        return body, None

    async def openai(request: Request) -> Response:
        body, refused = await take(request, request.headers.get("authorization", "").removeprefix("Bearer "))
        if refused is not None:
            return refused
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"lit": true}'}
        call = {"id": f"c{len(llm.requests)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return JSONResponse({"choices": [{"message": message}]})

    async def anthropic(request: Request) -> Response:
        body, refused = await take(request, request.headers.get("x-api-key"))
        if refused is not None:
            return refused
        name = body["tools"][0]["name"]
        block = {"type": "tool_use", "id": f"c{len(llm.requests)}", "name": name, "input": {"lit": True}}
        return JSONResponse({"content": [block]})

    routes = [
        Route("/v1/chat/completions", openai, methods=["POST"]),
        Route("/v1/messages", anthropic, methods=["POST"]),
    ]
    return Starlette(routes=routes)


@contextmanager
def served() -> Iterator[Llm]:
    llm = Llm()
    with serve_app(application(llm)) as url:
        llm.url = url
        try:
            yield llm
        finally:
            llm.released.set()
