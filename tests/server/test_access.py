"""Token, Host and Origin."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from openenv_sandbox.server import create_app
from tests.server.environments import Do, Recording, Saw
from tests.server.peers import serving

pytestmark = pytest.mark.anyio

TOKEN = "t0ken-canary"


async def test_with_a_token_everything_but_health_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is asked for before the upgrade, on every route, and stays out of every answer.

    Mutation: let AccessMiddleware look at http scopes alone
    """
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", TOKEN)
    app = create_app(Recording, Do, Saw)
    monkeypatch.delenv("OPENENV_AUTH_TOKEN")
    async with serving(app) as server:
        assert (await server.request("GET", "/health"))[0] == 200
        for method, path in (
            ("GET", "/state"),
            ("POST", "/reset"),
            ("GET", "/metadata"),
            ("GET", "/docs"),
            ("POST", "/mcp"),
            ("GET", "/no-such-path"),
            ("GET", "/health/"),
        ):
            status, headers, text = await server.request(method, path)
            assert status == 401, path
            assert headers["www-authenticate"] == "Bearer"
            assert TOKEN not in text
        assert server.sessions.active_sessions == 0
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-OpenEnv-Token": ""}, {"Authorization": TOKEN}):
            for path in ("/ws", "/mcp"):
                assert (await server.connect(path, headers)).status == 401
        for good in (
            {"Authorization": f"Bearer {TOKEN}"},
            {"Authorization": f"bearer {TOKEN}"},
            {"X-OpenEnv-Token": TOKEN, "Authorization": "Basic eDp5"},
            {"X-OpenEnv-Token": TOKEN, "Host": "sandbox-3.vendor.example"},
        ):
            assert (await server.request("GET", "/state", headers=good))[0] == 200
            peer = await server.connect("/ws", good)
            assert (await peer.reset())["type"] == "observation"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8000", True),
        ("127.0.0.1", True),
        ("[::1]:8000", True),
        ("10.1.2.3:80", True),
        ("echo:8000", True),
        ("testserver", True),
        ("space.hf.example", True),
        ("named.example", True),
        ("a.wild.example", True),
        ("wild.example.evil.example", False),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
    ],
)
async def test_hosts_without_a_token(monkeypatch: pytest.MonkeyPatch, host: str, allowed: bool) -> None:
    monkeypatch.setenv("SPACE_HOST", "space.hf.example")
    monkeypatch.setenv("OPENENV_ALLOWED_HOSTS", "named.example, .wild.example")
    async with serving(create_app(Recording, Do, Saw)) as server:
        for path in ("/health", "/state"):
            assert (await server.request("GET", path, headers={"Host": host}))[0] == (200 if allowed else 403)
        assert (await server.connect("/ws", {"Host": host})).status == (101 if allowed else 403)


@pytest.mark.parametrize(
    ("origin", "more", "allowed"),
    [
        ("http://127.0.0.1:8000", {"Host": "127.0.0.1:8000"}, True),
        ("https://localhost", {"Host": "localhost"}, True),
        ("https://me.hf.example", {"X-Forwarded-Host": "me.hf.example"}, True),
        ("https://listed.example", {}, True),
        ("http://127.0.0.1:9999", {"Host": "127.0.0.1:8000"}, False),
        ("https://evil.example", {}, False),
        ("null", {}, False),
        ("https://[broken", {}, False),
        ("http://a", {"Host": "a:\u00b2"}, False),
        ("http://a", {"Host": "a:" + "8" * 5000}, False),
    ],
)
async def test_origins(monkeypatch: pytest.MonkeyPatch, origin: str, more: dict[str, str], allowed: bool) -> None:
    monkeypatch.setenv("OPENENV_ALLOWED_ORIGINS", "https://listed.example/")
    for token in ("", TOKEN):
        monkeypatch.setenv("OPENENV_AUTH_TOKEN", token)
        headers = {"Origin": origin, "X-OpenEnv-Token": TOKEN, **more}
        async with serving(create_app(Recording, Do, Saw)) as server:
            assert (await server.request("GET", "/health", headers=headers))[0] == (200 if allowed else 403)
            assert (await server.connect("/ws", headers)).status == (101 if allowed else 403)


async def test_health_is_open_below_a_prefix_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy that serves a prefix, and mounted in another application, the same one route is open.

    Mutation: compare scope["path"] with OPEN_PATHS
    """
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", TOKEN)
    app = create_app(Recording, Do, Saw)
    outer = FastAPI()
    outer.mount("/env", create_app(Recording, Do, Saw))
    cases: list[tuple[FastAPI, dict[str, Any]]] = [(app, {"root_path": "/env"}), (outer, {})]
    for served, config in cases:
        async with serving(served, **config) as server:
            # uvicorn puts the prefix before every path by itself; a mount wants it in the request.
            prefix = "" if config else "/env"
            assert (await server.request("GET", f"{prefix}/health"))[0] == 200
            for path in ("/state", "/health/", "/health/env/health"):
                assert (await server.request("GET", prefix + path))[0] == 401
            assert (await server.connect(f"{prefix}/ws")).status == 401
