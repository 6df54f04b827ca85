"""Who may talk to the server: token, Host and Origin, checked before anything else.

One ASGI middleware that only reads headers, so that ``/ws`` costs nothing more than that.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

TOKEN_HEADER = b"x-openenv-token"
OPEN_PATHS = frozenset(("/health",))


@dataclass(frozen=True)
class AccessRules:
    """Who may talk to the server.

    Attributes:
        token: What every request but ``/health`` must carry; empty for none.
        hosts: Names that may stand in ``Host`` while there is no token, beside IP literals and single-label names:
            ``name``, ``.example.org`` for all below it, ``*`` for all.
        origins: Origins that may call beside the server's own.
    """

    token: str = field(default="", repr=False)
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    @classmethod
    def from_environ(cls) -> AccessRules:
        """``OPENENV_AUTH_TOKEN``, ``OPENENV_ALLOWED_HOSTS`` with ``SPACE_HOST``, and ``OPENENV_ALLOWED_ORIGINS``."""
        return cls(
            token=os.environ.get("OPENENV_AUTH_TOKEN", "").strip(),
            hosts=frozenset(_split("OPENENV_ALLOWED_HOSTS") | _split("SPACE_HOST")),
            origins=frozenset(origin.rstrip("/") for origin in _split("OPENENV_ALLOWED_ORIGINS")),
        )


class Door(Protocol):
    """Lets in requests without the token in a header, as those of a browser are."""

    async def admit(self, path: str, scope: Message, receive: Receive, send: Send) -> bool | None:
        """Whether such a request may pass; None when the door has answered it."""
        ...


class AccessMiddleware:
    """Refuses requests without the token (401), for a foreign Host or from a foreign Origin (403).

    Args:
        app: What is protected.
        rules: Who may pass.
        doors: Asked about requests without the token.
    """

    def __init__(self, app: App, rules: AccessRules, doors: Sequence[Door] = ()) -> None:
        self._app = app
        self._doors = doors
        self._token = rules.token.encode()
        self._hosts = rules.hosts
        self._origins = rules.origins

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None and refusal[0] == 401:
                for door in self._doors:
                    admitted = await door.admit(route_of(scope), scope, receive, send)
                    if admitted is None:
                        return
                    if admitted:
                        refusal = None
            if refusal is not None:
                await _refuse(scope, receive, send, *refusal)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        host = forwarded = origin = b""
        tokens: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"x-forwarded-host":
                forwarded = value.split(b",")[0].strip()
            elif name == TOKEN_HEADER:
                tokens.append(value)
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                tokens.append(value[7:].strip())
        if origin and not self._origin_allowed(origin, (host, forwarded)):
            return 403, "This Origin is not allowed here; list it in OPENENV_ALLOWED_ORIGINS."
        if not self._token:
            if not self._host_allowed(host):
                return 403, "This Host is not served; list it in OPENENV_ALLOWED_HOSTS or set OPENENV_AUTH_TOKEN."
        elif route_of(scope) not in OPEN_PATHS and not any(hmac.compare_digest(t, self._token) for t in tokens):
            return 401, "A token is needed: Authorization: Bearer <token>, or X-OpenEnv-Token."
        return None

    def _host_allowed(self, raw: bytes) -> bool:
        name = _hostname(raw.decode("latin-1"))
        if "." not in name and ":" not in name:  # includes an absent Host and localhost
            return True
        return _is_address(name) or _listed(name, self._hosts)

    def _origin_allowed(self, raw: bytes, hosts: Iterable[bytes]) -> bool:
        origin = raw.decode("latin-1").lower().rstrip("/")
        if origin in self._origins or "*" in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            return False
        if not parts.hostname:
            return False
        return any(host and _same(parts.hostname, port, host.decode("latin-1")) for host in hosts)


def _split(variable: str) -> set[str]:
    return {item.strip().lower() for item in os.environ.get(variable, "").split(",") if item.strip()}


def route_of(scope: Message) -> str:
    """The path as the router sees it: below the prefix of a proxy, or of the application this one is mounted in."""
    path, root = str(scope["path"]), scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _hostname(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _listed(name: str, allowed: frozenset[str]) -> bool:
    return (
        "*" in allowed
        or name.rstrip(".") in allowed
        or any(item.startswith(".") and name.endswith(item) for item in allowed)
    )


def _same(name: str, port: int | None, host: str) -> bool:
    if _hostname(host) != name:
        return False
    given = host.rpartition(":")[2]
    # Without a port the Host header says nothing about the scheme, which a proxy in front may have changed.
    # Compared as text: not everything that counts as digits makes an int.
    return given == str(port) if given.isdigit() and not host.endswith("]") and ":" in host else port in (80, 443)


async def _refuse(scope: Message, receive: Receive, send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await receive()
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:  # such a server answers the upgrade with 403
        await send({"type": "websocket.close", "code": 1008, "reason": text})
