"""Who gets to the page of a server that wants its token, and which cookies visitors have."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.server.web.app import create_web_interface_app
from openenv_sandbox.server.web.door import Door
from openenv_sandbox.server.web.visitors import SHARED
from tests.server.environments import Do, Recording, Saw
from tests.server.peers import serving

if TYPE_CHECKING:
    from tests.server.peers import Running

pytestmark = pytest.mark.anyio

TOKEN = "sesame canary/42"
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", TOKEN)
    return create_web_interface_app(Recording, Do, Saw)


async def signed_in(server: Running) -> str:
    status, headers, _ = await server.request("GET", "/web?token=sesame%20canary%2F42&watch=abc")
    assert (status, headers["location"]) == (303, "/web?watch=abc")
    return headers["set-cookie"].partition(";")[0]


async def test_a_slash_at_the_end_is_the_same_page(app: Any) -> None:
    """Else the token would be refused, and stay in the line of the access log.

    Mutation: exchange the token at the path without the slash alone
    """
    async with serving(app) as server:
        status, headers, _ = await server.request("GET", "/web/?token=sesame%20canary%2F42")
        assert (status, headers["location"]) == (303, "/web")


async def test_without_the_token_a_person_is_asked_and_a_program_is_refused(app: Any) -> None:
    async with serving(app) as server:
        status, headers, text = await server.request("GET", "/web", headers=BROWSER)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert '<form method="post" action="/web/login">' in text
        assert "unsafe" not in headers["content-security-policy"]
        for method, path in (
            ("GET", "/"),
            ("GET", "/web"),
            ("GET", "/web/metadata"),
            ("GET", "/web/static/main.js"),
            ("POST", "/web/session"),
            ("POST", "/web/reset"),
            ("GET", "/web/login"),
        ):
            assert (await server.request(method, path))[0] == 401, path
        assert (await server.connect("/ws/ui")).status == 401
        assert (await server.request("GET", "/web?token=wrong", headers=BROWSER))[0] == 401
        assert "set-cookie" not in (await server.request("GET", "/web?token=wrong", headers=BROWSER))[1]


async def test_the_token_becomes_a_cookie_that_opens_the_page_and_nothing_else(app: Any) -> None:
    """Mutation: let Door.admit pass every path"""
    async with serving(app) as server:
        cookie = {"Host": "localhost", "Cookie": await signed_in(server)}
        for method, path in (("GET", "/web"), ("GET", "/web/static/main.js"), ("POST", "/web/reset")):
            assert (await server.request(method, path, headers=cookie))[0] == 200
        assert (await server.request("GET", "/", headers=cookie))[0] == 307
        assert (await server.connect("/ws/ui", cookie)).status == 101
        for method, path in (("GET", "/docs"), ("POST", "/reset"), ("POST", "/mcp"), ("GET", "/webx")):
            assert (await server.request(method, path, headers=cookie))[0] == 401, path
        assert (await server.connect("/ws", cookie)).status == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await server.request("GET", "/web", headers=bearer))[0] == 200


async def test_a_cookie_of_another_token_opens_nothing(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: let Door.visitor accept any signature"""
    async with serving(app) as server:
        cookie = await signed_in(server)
    monkeypatch.setenv("OPENENV_AUTH_TOKEN", "another")
    async with serving(create_web_interface_app(Recording, Do, Saw)) as server:
        name, _, value = cookie.partition("=")
        for made_up in (cookie, f"{name}={value.partition('.')[0]}", f"{name}=", f"{name}=x.y", "nonsense;;="):
            assert (await server.request("POST", "/web/reset", headers={"Cookie": made_up}))[0] == 401


async def test_the_form_takes_the_token(app: Any) -> None:
    async with serving(app) as server:
        form = {"Content-Type": "application/x-www-form-urlencoded", **BROWSER}
        status, headers, _ = await post_form(server, "token=sesame+canary%2F42&watch=abc", form)
        assert (status, headers["location"]) == (303, "/web?watch=abc")
        assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
        status, _, text = await post_form(server, "token=no", form)
        assert status == 401
        assert "That is not the token of this server." in text
        assert (await post_form(server, "x" * 20_000, form))[0] == 401
        _, _, text = await server.request("GET", '/web?watch="><script>', headers=BROWSER)
        assert "script" not in text


async def post_form(server: Running, body: str, headers: dict[str, str]) -> tuple[int, dict[str, str], str]:
    import asyncio

    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /web/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}{lines}\r\n{body}".encode())
    answer = (await asyncio.wait_for(reader.read(), 20)).decode()
    writer.close()
    top, _, text = answer.partition("\r\n\r\n")
    first, *rest = top.split("\r\n")
    return int(first.split(" ")[1]), {n.lower(): v for n, _, v in (line.partition(": ") for line in rest)}, text


async def test_the_token_of_a_link_stays_out_of_the_access_log(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Mutation: leave the query of the scope as it is"""
    async with serving(app, log_config=None) as server:
        caplog.set_level(logging.INFO, "uvicorn.access")
        await signed_in(server)
    lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert any("/web?watch=abc" in line for line in lines)
    assert "canary" not in "".join(lines)


async def test_a_link_from_another_site_is_loaded_once_more(app: Any) -> None:
    """A strict cookie is held back on the first request of a link; a reload from our own page carries it."""
    async with serving(app) as server:
        _, _, text = await server.request("GET", "/web", headers={**BROWSER, "Sec-Fetch-Site": "cross-site"})
        assert 'http-equiv="refresh"' in text
        _, _, text = await server.request("GET", "/web", headers={**BROWSER, "Sec-Fetch-Site": "same-origin"})
        assert "refresh" not in text


async def test_other_origins_may_neither_act_nor_listen() -> None:
    async with serving(create_web_interface_app(Recording, Do, Saw)) as server:
        evil = {"Origin": "http://evil.example"}
        for path in ("/web/session", "/web/reset", "/web/step", "/web/close"):
            assert (await server.request("POST", path, headers=evil))[0] == 403
        assert (await server.connect("/ws/ui", evil)).status == 403
        assert (await server.request("GET", "/web", headers={"Host": "evil.example"}))[0] == 403
        assert server.sessions.active_sessions == 0


@pytest.mark.parametrize(
    ("headers", "space", "name", "attributes"),
    [
        ({"Host": "localhost:8000"}, "", "openenv-web-8000", "Path=/; HttpOnly; SameSite=Strict"),
        ({"Host": "env.example"}, "", "openenv-web", "Path=/; HttpOnly; SameSite=Strict"),
        (
            {"Host": "env.example", "X-Forwarded-Proto": "https"},
            "",
            "openenv-web",
            "Path=/; HttpOnly; SameSite=Strict; Secure",
        ),
        (
            {"Host": "env.example", "X-Forwarded-Proto": "https"},
            "me/space",
            "openenv-web",
            "Path=/; HttpOnly; SameSite=None; Secure; Partitioned",
        ),
    ],
)
async def test_cookies(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], space: str, name: str, attributes: str
) -> None:
    monkeypatch.setenv("OPENENV_ALLOWED_HOSTS", "env.example")
    monkeypatch.setenv("SPACE_ID", space)
    async with serving(create_web_interface_app(Recording, Do, Saw)) as server:
        _, answered, _ = await server.request("POST", "/web/session", headers=headers)
        first, _, rest = answered["set-cookie"].partition("; ")
        assert first.partition("=")[0] == name
        assert rest == attributes
        _, again, _ = await server.request("POST", "/web/session", headers={**headers, "Cookie": first})
        assert "set-cookie" not in again


async def test_a_cookie_that_is_none_of_ours_is_not_the_shared_visitor() -> None:
    """Nor is one that names it: a server without a token signs with a key that everybody knows.

    Mutation: return SHARED for a cookie with a wrong signature; take visitors of any length
    """
    for value in ("a" * 43 + ".b", f"{SHARED}.{Door('')._sign(SHARED)}"):
        await _other_than_shared(value)


async def _other_than_shared(value: str) -> None:
    async with serving(create_web_interface_app(Recording, Do, Saw)) as server:
        await server.request("POST", "/web/reset", {"seed": 1}, {"Host": "localhost"})
        stale = {"Host": "localhost", "Cookie": f"openenv-web={value}"}
        status, headers, text = await server.request("POST", "/web/reset", {"seed": 2}, stale)
        assert (status, "set-cookie" in headers) == (200, True)
        _, _, text = await server.request("GET", "/web/state", headers={"Host": "localhost"})
        assert json.loads(text)["seed"] == 1


@pytest.mark.usefixtures("no_blocking")
async def test_nothing_of_the_page_blocks_the_event_loop(app: Any) -> None:
    """Mutation: read the files of the page when they are asked for"""
    async with serving(app) as server:
        assert (await server.request("GET", "/web", headers=BROWSER))[0] == 401
        cookie = {"Host": "localhost", "Cookie": await signed_in(server)}
        for path in ("/web", "/web/static/main.js", "/web/metadata"):
            assert (await server.request("GET", path, headers=cookie))[0] == 200
        action = {"what": "sleep:", "seconds": 0.01}
        for path, body in (("session", None), ("reset", {"seed": 1}), ("step", {"action": action})):
            assert (await server.request("POST", f"/web/{path}", body, cookie))[0] == 200
        for path in ("state", "history/1", "export"):
            assert (await server.request("GET", f"/web/{path}", headers=cookie))[0] == 200
