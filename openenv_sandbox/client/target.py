"""Where a client connects: addresses, headers, the token, proxies, and what is refused in clear text."""

from __future__ import annotations

import ipaddress
import re
import ssl
import urllib.request
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from openenv_sandbox.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.provider import Endpoint

_WS = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_HTTP = {"ws": "http", "wss": "https"}
_PORTS = {"ws": 80, "wss": 443, "http": 80, "https": 443}
_DOCKER_NAMES = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
_DOCKER_NETWORK = ipaddress.ip_network("172.16.0.0/12")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_KEPT = "/%:=&?~+!$,;'@()*[]"
"""What stands in a path or query as it is; the rest is encoded."""
_RESERVED = frozenset(
    ("host", "upgrade", "connection", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions")
)


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy: host, port, and the value of ``Proxy-Authorization`` where its URL holds a password."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Target:
    """One WebSocket address and the way to it.

    Attributes:
        url: ``ws`` or ``wss`` address as shown to people: no query, no user, no password.
        scheme: ``ws`` or ``wss``.
        host: Host of the URL; what Host, SNI and the certificate check use.
        port: Port of the URL.
        path: Path and query of the upgrade.
        headers: Further request headers; secret.
        dial: Host and port that are connected to, proxy or not.
        proxy: Goes between; None for a direct connection.
        tls: Context for ``wss``; None for ``ws``.
        ping: Whether pings pass.
    """

    url: str
    scheme: str
    host: str
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    dial: tuple[str, int] = ("", 0)
    proxy: Proxy | None = None
    tls: ssl.SSLContext | None = None
    ping: bool = True

    @property
    def netloc(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def dial_hosts(self) -> list[tuple[bool, str]]:
        """Hosts to dial, in order, each with whether it is the last; ``localhost`` may listen on either address."""
        host = self.dial[0]
        hosts = [host, "127.0.0.1", "::1"] if host.lower() == "localhost" else [host]
        return [(index == len(hosts) - 1, name) for index, name in enumerate(hosts)]


def split_base(base_url: str) -> SplitResult:
    """The parts of a base URL; without a scheme it is ``http``.

    Raises:
        ConfigError: It names no host, or a scheme that is neither HTTP nor WebSocket.
    """
    text = base_url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text.rstrip("/"))
        port_ok = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if parts.scheme.lower() not in _WS or not parts.hostname or not port_ok or len(parts.netloc.split()) != 1:
        raise ConfigError(
            f"base_url {base_url.rpartition('@')[2].split('?')[0]!r} is not an address",
            hint="write http://host:port or https://host",
        )
    return parts._replace(scheme=parts.scheme.lower())


def ws_url(base_url: str, path: str = "/ws") -> str:
    """The WebSocket address under a base URL; path and query of the base are kept."""
    parts = split_base(base_url)
    return urlunsplit((_WS[parts.scheme], parts.netloc, parts.path.rstrip("/") + path, parts.query, ""))


def http_url(base_url: str, path: str) -> str:
    """An HTTP address under a base URL; path and query of the base are kept."""
    parts = split_base(base_url)
    scheme = _HTTP.get(parts.scheme, parts.scheme)
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + path, parts.query, ""))


def shown(url: str) -> str:
    """A URL without user, password, query and what is registered as a secret, for messages."""
    from openenv_sandbox.redact import mask

    parts = urlsplit(url)
    return mask(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_private(host: str) -> bool:
    """Whether a host lies on this machine or a private network: loopback, private ranges, single-label names."""
    name = host.lower().rstrip(".")
    if is_loopback(name) or name in _DOCKER_NAMES:
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return "." not in name or name.endswith((".local", ".internal", ".svc"))
    return address.is_private or address.is_link_local


def _is_docker(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name in _DOCKER_NAMES:
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.version == 4 and address in _DOCKER_NETWORK


def proxy_for(url: str) -> Proxy | None:
    """The proxy the environment asks for: never for this machine or docker's own addresses, NO_PROXY honoured.

    Raises:
        ConnectError: The environment names a kind of proxy that cannot be used.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or _is_docker(host):
        return None
    proxies = urllib.request.getproxies()
    secure = parts.scheme in ("wss", "https")
    text = proxies.get("https" if secure else "http") or proxies.get("all")
    if not text or urllib.request.proxy_bypass(f"{host}:{parts.port or _PORTS[parts.scheme]}"):
        return None
    try:
        found = urlsplit(text if "://" in text else f"http://{text}")
        port = found.port or 80
    except ValueError:
        found, port = urlsplit("malformed://"), 0
    if found.scheme != "http" or not found.hostname or not port:
        raise ConnectError(
            f"Failed to connect to {shown(url)}: a {found.scheme or 'nameless'} proxy cannot be used, only http://host:port",
            hint="name an http proxy in HTTPS_PROXY, or put the host into NO_PROXY",
            retryable=False,
        )
    secret = None
    if found.username is not None:
        login = f"{unquote(found.username)}:{unquote(found.password or '')}"
        secret = "Basic " + b64encode(login.encode()).decode()
    return Proxy(found.hostname, port, secret)


def auth_headers(headers: Mapping[str, str], token: str | None) -> dict[str, str]:
    """``headers`` and the server's token, which steps aside when Authorization is taken."""
    if not token or not {token, f"Bearer {token}"}.isdisjoint(headers.values()):
        return dict(headers)
    taken = {name.lower() for name in headers}
    if "authorization" in taken:
        return {**headers, "X-OpenEnv-Token": token}
    return {**headers, "Authorization": f"Bearer {token}"}


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as a plain dict.

    Raises:
        ConfigError: A name or value would break the request apart, or the handshake owns it.
    """
    for name, value in headers.items():
        if not _NAME.fullmatch(str(name)) or not _VALUE.fullmatch(str(value)):
            raise ConfigError(f"header {name!r} contains a character that is not allowed")
        if name.lower() in _RESERVED and name.lower() != "host":
            raise ConfigError(f"header {name!r} belongs to the handshake")
    return {name: str(value) for name, value in headers.items()}


def refuse_cleartext(url: str, *, secret: bool, allowed: bool) -> None:
    """Keep tokens and headers off the open network.

    Args:
        url: Where they would go.
        secret: Whether there are any; an address without secrets is the user's own choice.
        allowed: Whether the user accepts it.

    Raises:
        ConfigError: They would travel readable for everyone.
    """
    parts = urlsplit(url)
    if parts.scheme in ("wss", "https") or allowed or not secret or is_private(parts.hostname or ""):
        return
    raise ConfigError(
        f"{shown(url)} is not encrypted and not on a private network: the token or headers could be read on the way",
        hint="use https, or set client.allow_insecure = True if you accept that",
    )


def resolve(
    base_url: str,
    *,
    path: str = "/ws",
    query: str = "",
    headers: Mapping[str, str],
    endpoint: Endpoint | None = None,
    token: str | None = None,
    allow_insecure: bool = False,
) -> Target:
    """The target of one connection.

    Raises:
        ConfigError: The address is malformed, or secrets would travel in clear text.
        ConnectError: The environment's proxy cannot be used.
    """
    own = endpoint.headers if endpoint is not None else {}
    sent = check_headers(auth_headers({**own, **headers}, token))
    url = ws_url(endpoint.url if endpoint is not None else base_url, path)
    connect_to = endpoint.connect_to if endpoint is not None else None
    # A tunnel of our own to loopback is as good as loopback, whatever the name in the URL.
    near = connect_to is not None and is_private(connect_to[0])
    keyed = endpoint is not None and bool(endpoint.url_secret)
    refuse_cleartext(url, secret=bool(sent) or keyed, allowed=allow_insecure or near)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    proxy = proxy_for(url) if connect_to is None else None
    tls: ssl.SSLContext | None = None
    if parts.scheme == "wss":
        tls = (endpoint.tls if endpoint is not None else None) or ssl.create_default_context()
    full = "&".join(q for q in (parts.query, query) if q)
    return Target(
        url=shown(url),
        scheme=parts.scheme,
        host=host,
        port=port,
        path=quote(parts.path or "/", _KEPT) + (f"?{quote(full, _KEPT)}" if full else ""),
        headers=sent,
        dial=(proxy.host, proxy.port) if proxy else connect_to or (host, port),
        proxy=proxy,
        tls=tls,
        ping=endpoint.ping if endpoint is not None else True,
    )
