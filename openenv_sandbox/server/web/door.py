"""How a person gets in: a cookie that names the visitor and, where the server wants its token, proves he gave it once.

A browser cannot put the token into a header of a page it opens. So ``/web`` without one answers with a form that asks
for it, and ``/web?token=…`` exchanges it for the cookie and leads to the page without it.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import os
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response

from openenv_sandbox.server.web.assets import login_page

if TYPE_CHECKING:
    from openenv_sandbox.server.access import Message, Receive, Send

LOGIN_LIMIT = 8192
"""Bytes of a form that is read for a token."""


class Door:
    """Cookies of the page, and what happens at ``/web`` without one.

    Args:
        token: The server's token; empty for none.
        root: Path of the page.
    """

    def __init__(self, token: str, root: str = "/web") -> None:
        self._token = token
        self._root = root
        self._framed_by_others = bool(os.environ.get("SPACE_ID"))

    # -- the cookie ---------------------------------------------------------------------------------------------

    def visitor(self, headers: Any) -> str | None:
        """The visitor that a request's cookie names; None where it has none, or one this server has not signed."""
        name = self._name(headers)
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            return None
        if morsel is None:
            return None
        visitor, _, signature = morsel.value.partition(".")
        valid = len(visitor) >= 32 and hmac.compare_digest(signature.encode(), self._sign(visitor).encode())
        return visitor if valid else None

    def has_cookie(self, headers: Any) -> bool:
        """Whether there is a cookie of ours, valid or not."""
        return f"{self._name(headers)}=" in headers.get("cookie", "")

    def new_cookie(self, headers: Any, scheme: str) -> tuple[str, str]:
        """A new visitor, and the header that makes the browser send his id from now on."""
        visitor = secrets.token_urlsafe(32)
        secure = "https" in (scheme, headers.get("x-forwarded-proto", "").split(",")[0].strip())
        # A Space is shown in a frame of another site, where browsers send no SameSite=Strict cookie; the check of
        # Origin keeps other sites from acting in a visitor's name all the same.
        site = "SameSite=None; Secure; Partitioned" if self._framed_by_others else "SameSite=Strict"
        if secure and not self._framed_by_others:
            site += "; Secure"
        return visitor, f"{self._name(headers)}={visitor}.{self._sign(visitor)}; Path=/; HttpOnly; {site}"

    def _name(self, headers: Any) -> str:
        # Browsers send a host's cookies to all its ports, so that two servers on one machine need two names.
        port = headers.get("host", "").rpartition(":")[2]
        return f"openenv-web-{port}" if port.isdecimal() else "openenv-web"

    def _sign(self, visitor: str) -> str:
        # Without a token there is nothing to prove: then the same key everywhere, so that a restart keeps visitors.
        return hmac.new(self._token.encode(), f"visitor {visitor}".encode(), hashlib.sha256).hexdigest()

    # -- without the token in a header --------------------------------------------------------------------------

    async def admit(self, path: str, scope: Message, receive: Receive, send: Send) -> bool | None:
        """Whether a request of a server with a token may pass; None when it has been answered here."""
        if path not in ("/", self._root, "/ws/ui") and not path.startswith(f"{self._root}/"):
            return False
        headers = _Headers(scope)
        page = scope["type"] == "http" and path.rstrip("/") == self._root and scope["method"] == "GET"
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        if page and "token" in query:
            given = query.pop("token")
            # What is left is what the access log shows.
            scope["query_string"] = urlencode(query).encode()
            await self._exchange(given, query, headers, scope, receive, send)
            return None
        if self.visitor(headers) is not None:
            return True
        if scope["type"] == "http" and path == f"{self._root}/login" and scope["method"] == "POST":
            form = dict(parse_qsl((await _body(receive)).decode("latin-1")))
            given = form.pop("token", "")
            await self._exchange(
                given, {"watch": form["watch"]} if "watch" in form else {}, headers, scope, receive, send
            )
            return None
        if page and "text/html" in headers.get("accept", ""):
            await self._ask(query, headers, scope)(scope, receive, send)
            return None
        return False

    async def _exchange(
        self, given: str, query: dict[str, str], headers: Any, scope: Message, receive: Receive, send: Send
    ) -> None:
        if not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            await self._ask(query, headers, scope, wrong=True)(scope, receive, send)
            return
        response = RedirectResponse(
            scope.get("root_path", "") + self._root + (f"?{urlencode(query)}" if query else ""), status_code=303
        )
        if self.visitor(headers) is None:
            response.headers["set-cookie"] = self.new_cookie(headers, scope.get("scheme", "http"))[1]
        response.headers.update({"cache-control": "no-store", "referrer-policy": "no-referrer"})
        await response(scope, receive, send)

    def _ask(self, query: dict[str, str], headers: Any, scope: Message, *, wrong: bool = False) -> Response:
        action = html.escape(scope.get("root_path", "") + self._root + "/login")
        page, extra = login_page()
        page = page.replace(b"<!--action-->", action.encode())
        if headers.get("sec-fetch-site") == "cross-site" and not wrong:
            # A link from another site: the browser holds a strict cookie back until the page is loaded from here.
            page = page.replace(b"<!--again-->", b'<meta http-equiv="refresh" content="0">')
        if wrong:
            page = page.replace(b"<!--wrong-->", b'<p role="alert">That is not the token of this server.</p>')
        watch = query.get("watch", "")
        if watch.replace("-", "").replace("_", "").isalnum() and watch.isascii():
            page = page.replace(b"<!--watch-->", b'<input type="hidden" name="watch" value="%s">' % watch.encode())
        return HTMLResponse(page, status_code=401, headers=extra)


class _Headers:
    """Headers of a scope by lower-case name."""

    def __init__(self, scope: Message) -> None:
        self._headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }

    def get(self, name: str, default: str = "") -> str:
        return self._headers.get(name, default)


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) <= LOGIN_LIMIT:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    return body[:LOGIN_LIMIT]
