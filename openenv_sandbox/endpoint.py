"""The way to a port of a sandbox."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from openenv_sandbox import redact

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping


class Endpoint:
    """The way to one port of one sandbox, from here and now.

    Bound to the loop that made it and to this process; never journalled or pickled. It owns whatever carries it (a
    tunnel, a relay): `aclose` ends that, and `failure` says why it ended by itself.

    Args:
        url: ``http`` or ``https`` address, path and query included.
        headers: Sent with every request and upgrade; secret.
        expires_at: Unix time in seconds after which a fresh endpoint must be asked for.
        connect_to: Dial this host and port while the URL's host stays in Host, SNI and certificate check.
        tls: Context for ``https``; None for the system's.
        ping: Whether WebSocket pings pass.
        max_connection_s: After how long the way is cut, None when it is not.
        public: Whether anyone who knows the address may come in.
        url_secret: The part of ``url`` that is itself the key, where the address cannot be guessed and lets in whoever
            has it: it stands in no message, event, log or repr, and never travels in clear text.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        connect_to: tuple[str, int] | None = None,
        tls: ssl.SSLContext | None = None,
        ping: bool = True,
        max_connection_s: float | None = None,
        public: bool = False,
        url_secret: str = "",
        failure: Callable[[], BaseException | None] | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.url = url
        self.headers = dict(headers or {})
        self.expires_at = expires_at
        self.connect_to = connect_to
        self.tls = tls
        self.ping = ping
        self.max_connection_s = max_connection_s
        self.public = public
        self.url_secret = url_secret
        if url_secret:
            if url_secret not in url or len(url_secret) < redact.SHORTEST:
                raise ValueError(f"url_secret is a part of url of at least {redact.SHORTEST} characters")
            forms = (url_secret, url_secret.lower())  # errors of TLS and DNS name hosts in lower case
            redact.register(*forms)
            weakref.finalize(self, redact.forget, *forms)
        self._failure = failure
        self._close = close

    @property
    def shown(self) -> str:
        """The address for people: no user, password, query or secret."""
        parts = urlsplit(self.url)
        return redact.mask(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))

    def failure(self) -> BaseException | None:
        """Why the way is dead; None while it is not known to be."""
        return self._failure() if self._failure is not None else None

    async def aclose(self) -> None:
        """End whatever carries the endpoint. May be called twice."""
        close, self._close = self._close, None
        if close is not None:
            await close()

    def __repr__(self) -> str:
        return f"<Endpoint {self.shown} headers={sorted(self.headers)}>"

    def __reduce__(self) -> Any:
        raise TypeError("an Endpoint belongs to one process and loop; pickle the sandbox's ref and attach instead")
