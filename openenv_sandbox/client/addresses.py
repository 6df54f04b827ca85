"""Addresses that this process handed out as plain text, and what else it takes to use them.

Older code keeps a container's address as a string and passes it to a client later. The server behind it may want the
headers of its backend and a token, and neither belongs into a URL. So whoever hands out such an address leaves here
what belongs to it, and a client made with that address finds it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from openenv_sandbox.endpoint import Endpoint
    from openenv_sandbox.errors import OpenEnvError


@dataclass(frozen=True)
class Address:
    """What belongs to one address.

    Attributes:
        endpoint: With its headers.
        token: The server's.
        refresh: Gives a fresh endpoint.
        death: Says why the server ended, where it did.
        sandbox: What the client shows as its own.
        home: The loop that the callables belong to.
    """

    endpoint: Endpoint
    token: str | None
    refresh: Callable[[], Awaitable[Endpoint]]
    death: Callable[[], Awaitable[OpenEnvError | None]] | None
    sandbox: Any
    home: asyncio.AbstractEventLoop


_lock = threading.Lock()
_known: dict[str, Address] = {}


def publish(address: Address) -> str:
    """Remember what belongs to an address; returns its text."""
    url = address.endpoint.url.rstrip("/")
    with _lock:
        _known[url] = address
    return url


def withdraw(url: str) -> None:
    """Forget an address, known or not."""
    with _lock:
        _known.pop(url.rstrip("/"), None)


def find(url: str) -> Address | None:
    """What belongs to an address; None for one of somebody else."""
    with _lock:
        return _known.get(url.rstrip("/"))
