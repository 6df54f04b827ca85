"""The opening of a WebSocket connection without I/O: requests as bytes, and answers or a sentence what answered."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from openenv_sandbox.errors import ConnectError
from openenv_sandbox.wire import frames, limits

if TYPE_CHECKING:
    from openenv_sandbox.client.target import Target

MAX_HEAD = 64 * 1024
"""Most bytes of a response head."""

MAX_BODY = 4096
"""Most bytes of a refusal's body that are read."""

EXCERPT = 300
"""Most characters of a body that is shown in an error."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.I | re.S)
_SECRETS = re.compile(
    r"(?i)((?:bearer|basic)\s+|[\w-]*(?:token|key|secret|password|authorization|signature|credential)[\w-]*[\"']?\s*[=:]\s*[\"']?)"
    r"[^\s\"'&,;<>]{4,}"
)


@dataclass(frozen=True)
class Head:
    """Head of an HTTP response, its header names in lower case."""

    status: int
    reason: str
    headers: dict[str, str]


def upgrade_request(target: Target, key: str) -> bytes:
    """The GET that asks for the upgrade; no extension is offered."""
    lines = {
        "Host": target.netloc,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
        "User-Agent": "openenv",
    }
    own = {name.lower() for name in target.headers}
    kept = [f"{name}: {value}" for name, value in lines.items() if name.lower() not in own]
    extra = [f"{name}: {value}" for name, value in target.headers.items()]
    return "\r\n".join([f"GET {target.path} HTTP/1.1", *kept, *extra, "", ""]).encode("latin-1", "replace")


def connect_request(target: Target) -> bytes:
    """The CONNECT that asks a proxy for a tunnel."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [f"CONNECT {host}:{target.port} HTTP/1.1", f"Host: {host}:{target.port}"]
    if target.proxy is not None and target.proxy.authorization:
        lines.append(f"Proxy-Authorization: {target.proxy.authorization}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def parse_head(data: bytes | bytearray) -> tuple[Head, bytes] | None:
    """Head of a response and what follows it; None while it is not whole.

    Raises:
        ValueError: It is no HTTP response.
    """
    end = data.find(b"\r\n\r\n")
    if not bytes(data[:5]).startswith(b"HTTP/"[: len(data)]) or (end < 0 and len(data) > MAX_HEAD):
        raise ValueError("what answered does not speak HTTP")
    if end < 0:
        return None
    first, *rest = bytes(data[:end]).decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    code, _, reason = status.partition(" ")
    if not version.startswith("HTTP/1.") or not re.fullmatch("[0-9]{3}", code):
        raise ValueError("what answered does not speak HTTP/1.1")
    headers: dict[str, str] = {}
    for line in rest:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return Head(int(code), reason.strip(), headers), bytes(data[end + 4 :])


def body_length(head: Head) -> int:
    """How many bytes of the body of a refusal are worth waiting for."""
    announced = limits.parse_count(head.headers.get("content-length", ""))
    return MAX_BODY if announced is None else min(announced, MAX_BODY)


def check_upgrade(target: Target, head: Head, key: str) -> int | None:
    """Accept the server's answer; returns the message limit it announces, in bytes.

    Raises:
        ConnectError: It is not the answer to our question.
    """
    if head.headers.get("sec-websocket-accept") != frames.accept_key(key):
        raise failed(target, "what answered 101 did not answer this handshake (a cache or a wrong server)")
    if "sec-websocket-extensions" in head.headers:
        raise failed(target, "the server chose a WebSocket extension that was not offered")
    return limits.parse_announced(head.headers.get(limits.HEADER))


def excerpt(body: bytes) -> str:
    """Start of a body as plain text: no control characters, no markup, nothing that looks like a secret."""
    text = _TAGS.sub(" ", body[: 16 * EXCERPT].decode("utf-8", "replace"))
    text = _SECRETS.sub(lambda m: f"{m.group(1)}***", " ".join(_CONTROL.sub(" ", text).split()))
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "…"


def failed(target: Target, why: str, *, retryable: bool = True, hint: str | None = None) -> ConnectError:
    """The error for a connection that did not come about."""
    return ConnectError(f"Failed to connect to {target.url}: {why}", retryable=retryable, hint=hint)


def os_reason(error: OSError) -> str:
    """What an operating system error says, the same from either transport."""
    if error.errno is not None and error.errno > 0:
        return f"[Errno {error.errno}] {os.strerror(error.errno)}"
    return str(error) or type(error).__name__


def hung_up(target: Target) -> ConnectError:
    """The error for a connection that ended before an answer; raised from a ``ConnectionResetError``."""
    return failed(target, "it closed the connection before answering")


def refused(target: Target, head: Head, body: bytes, *, by_proxy: bool = False) -> ConnectError:
    """The error for an answer other than the upgrade: says who answered, what, and what that usually means."""
    status = head.status
    why = f"{'the proxy' if by_proxy else 'it'} answered HTTP {status} {_CONTROL.sub(' ', head.reason)}".rstrip()
    hint, retryable = None, status >= 500 or status in (408, 425, 429)
    if by_proxy:
        hint = "check HTTPS_PROXY, or put the host into NO_PROXY"
    elif 300 <= status < 400:
        where = urlsplit(head.headers.get("location", "")).hostname
        why += f" to {where}" if where else ""
        why += ", an auth page: the way in wants credentials (redirects are not followed, nothing was sent there)"
        hint = "pass headers= with the token of this endpoint, or check that it is right"
    elif status == 401:
        why += ": auth failed, the token or key is missing or wrong"
        hint = "pass headers= with the token the server or its proxy wants"
    elif status == 403:
        why += (
            ": refused; the token lacks access, the Host or Origin is not allowed, or there is no /ws at this address"
        )
        hint = "check headers=, the base_url, and OPENENV_ALLOWED_HOSTS of the server"
    elif status == 404:
        hint = "is this the address of an environment server? the path of base_url is kept"
    elif status == 200:
        why += " instead of an upgrade: what listens there is no environment server"
    text = excerpt(body)
    error = failed(target, why + (f": {text}" if text else ""), retryable=retryable, hint=hint)
    error.status = status
    return error
