"""Heads of HTTP/1.1 requests, as much as routing needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT = 64 << 10


@dataclass(frozen=True)
class RequestHead:
    """One request up to its empty line.

    Attributes:
        method, target: As sent.
        path, query: Of the target.
        headers: Pairs in order, names in lower case.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    def get(self, name: str, default: str = "") -> str:
        """The first header of that name."""
        name = name.lower()
        return next((value for key, value in self.headers if key == name), default)

    @property
    def host(self) -> str:
        """The Host header without its port."""
        host = self.get("host")
        return host if host.endswith("]") else host.rpartition(":")[0] or host

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies sent."""
        pairs = (item.partition("=") for item in self.get("cookie").split(";") if "=" in item)
        return {name.strip(): value.strip() for name, _, value in pairs}

    @property
    def upgrade(self) -> bool:
        """Whether it wants to become a WebSocket."""
        return self.get("upgrade").lower() == "websocket"

    def encode(
        self, *, target: str | None = None, drop: frozenset[str] = frozenset(), add: Mapping[str, str] | None = None
    ) -> bytes:
        """As bytes; without the headers in ``drop``, with those in ``add`` (names in lower case)."""
        lines = [f"{self.method} {target or self.target} HTTP/1.1"]
        extra = dict(add or {})
        gone = drop | set(extra)
        lines += [f"{name}: {value}" for name, value in self.headers if name not in gone]
        lines += [f"{name}: {value}" for name, value in extra.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class BadRequest(Exception):
    """What came is no HTTP/1.1 request."""


async def read_head(reader: asyncio.StreamReader) -> RequestHead | None:
    """The next head; None at the end.

    Raises:
        BadRequest: It is none.
    """
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise BadRequest("the head broke off") from None
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest("the head is too long") from None
    line, *rest = raw[:-4].decode("latin-1").lstrip("\r\n").split("\r\n")
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(f"not HTTP/1.1: {line[:80]!r}")
    headers = []
    for item in rest:
        name, colon, value = item.partition(":")
        if not colon:
            raise BadRequest(f"no header: {item[:80]!r}")
        headers.append((name.lower(), value.strip()))
    return RequestHead(parts[0], parts[1], tuple(headers))


def answer(status: int, headers: dict[str, str], body: bytes, *, head: bool = False) -> bytes:
    """A whole answer that ends the connection; with ``head`` the body is only counted."""
    sent = {"content-length": str(len(body)), "connection": "close", **{k.lower(): v for k, v in headers.items()}}
    lines = [f"HTTP/1.1 {status} {_reason(status)}", *(f"{name}: {value}" for name, value in sent.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if head else body)


def _reason(status: int) -> str:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
