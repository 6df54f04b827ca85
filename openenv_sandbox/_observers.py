"""Who is told what happens in this process, beside the user's own callbacks: `openenv_sandbox.telemetry` hooks in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openenv_sandbox.events import Event


@dataclass(frozen=True)
class Call:
    """One message to an environment server and its reply.

    Attributes:
        kind: ``reset``, ``step``, ``state``, …
        duration_s: From sending to the reply, or to the error.
        sent: Bytes of the message.
        received: Bytes of the reply; 0 without one.
        error: What was raised; None for a reply.
        sandbox: The sandbox's ref as text; empty for a server that was given by its address.
        provider: Name of its backend; empty likewise.
    """

    kind: str
    duration_s: float
    sent: int
    received: int
    error: BaseException | None
    sandbox: str = ""
    provider: str = ""


events: list[Callable[[Event], None]] = []
calls: list[Callable[[Call], None]] = []


async def observed(client: Any, kind: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await ``call()`` and tell `calls` about it; what they raise goes nowhere."""
    began, error = time.perf_counter(), None
    client._moved = (0, 0)
    try:
        return await call()
    except BaseException as raised:
        error = raised
        raise
    finally:
        ref = getattr(client._sandbox, "ref", None)
        sent, received = client._moved
        seen = Call(
            kind,
            time.perf_counter() - began,
            sent,
            received,
            error,
            "" if ref is None else str(ref),
            "" if ref is None else ref.provider,
        )
        for tell in tuple(calls):
            _quietly(tell, seen)


def told(event: Event) -> None:
    """Tell `events`."""
    for tell in tuple(events):
        _quietly(tell, event)


def _quietly(tell: Callable[[Any], None], what: Any) -> None:
    try:
        tell(what)
    except Exception:
        import logging

        logging.getLogger("openenv").exception("telemetry failed")
