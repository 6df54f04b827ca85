"""How the stages of a launch are told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.cli.terminal import Terminal
    from openenv_sandbox.events import Event

_WORDS = {
    "building": "preparing the image",
    "creating": "creating the sandbox",
    "created": "sandbox created",
    "starting": "starting the server",
    "ready": "server ready",
    "connected": "connected",
    "stopping": "removing the sandbox",
    "stopped": "sandbox removed",
    "failed": "failed",
}


def short(ref: str) -> str:
    """A ref as `openenv stop` takes it, without the tail of a long hexadecimal id."""
    return re.sub(r":([0-9a-f]{12})[0-9a-f]{20,}$", r":\1", ref)


def show_events(terminal: Terminal, update: Callable[[str], None]) -> Callable[[Event], None]:
    """A callback for ``on_event`` that tells each stage on stderr."""

    def on_event(event: Event) -> None:
        if event.stage == "failed":
            return  # the error itself is told at the end
        text = _WORDS.get(event.stage, event.stage)
        where = f" [{short(str(event.ref))}]" if event.ref is not None else f" [{event.provider}]"
        took = f" ({event.duration_s:.1f} s)" if event.duration_s is not None else ""
        detail = f": {event.message}" if event.message else ""
        update(f"{text}{where}{took}{detail}")

    return on_event
