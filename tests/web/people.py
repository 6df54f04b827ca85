"""Browsers without a screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.web.app import create_web_interface_app
from tests.server.environments import Do, Recording, Saw

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tests.server.peers import Peer, Running

PLAIN = {"Sec-WebSocket-Extensions": "x-none"}
"""The client of these tests reads no compressed frames."""


def page(env: Any = Recording, **options: Any) -> FastAPI:
    return create_web_interface_app(env, Do, Saw, **options)


class Person:
    """A browser without its screen: keeps the cookie."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.cookie = ""

    async def arrive(self) -> Any:
        status, headers, text = await self.server.request("POST", "/web/session", headers=self.headers)
        assert status == 200
        self.cookie = headers.get("set-cookie", self.cookie).partition(";")[0]
        return json.loads(text)

    @property
    def headers(self) -> dict[str, str]:
        return {"Host": "localhost", **({"Cookie": self.cookie} if self.cookie else {})}

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        status, _, text = await self.server.request("POST", path, body, self.headers)
        return status, json.loads(text) if text else None

    async def get(self, path: str) -> tuple[int, Any]:
        status, _, text = await self.server.request("GET", path, headers=self.headers)
        return status, json.loads(text)

    async def tab(self, query: str = "?live=1") -> Peer:
        return await self.server.connect(f"/ws/ui{query}", {**self.headers, **PLAIN})


async def person(server: Running) -> Person:
    someone = Person(server)
    await someone.arrive()
    return someone
