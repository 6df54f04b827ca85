"""What a launch tells while it happens: to ``logging`` (``openenv.launch``) and to a callback."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openenv_sandbox import _observers
from openenv_sandbox.redact import clean, mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.provider import SandboxRef

Stage = Literal[
    "building", "creating", "created", "starting", "ready", "connected", "stopping", "stopped", "extended", "failed"
]
_log = logging.getLogger("openenv.launch")
_TOOK: dict[Stage, Stage] = {"created": "creating", "ready": "starting", "connected": "ready", "stopped": "stopping"}


@dataclass(frozen=True)
class Event:
    """One step of a sandbox's life.

    Attributes:
        stage: Which. ``building`` comes once for each line of the build's output.
        provider: Name of the backend.
        key: Our key of the sandbox; empty before there is one.
        ref: The sandbox, once it exists.
        duration_s: Seconds the step took, None where it only begins; for ``failed`` since the launch began.
        message: Details, without secrets.
    """

    stage: Stage
    provider: str
    key: str = ""
    ref: SandboxRef | None = None
    duration_s: float | None = None
    message: str = ""


class Reporter:
    """Events of one sandbox.

    Args:
        provider: Name of the backend.
        on_event: The user's callback; what it raises is logged and goes no further.
    """

    def __init__(self, provider: str, on_event: Callable[[Event], object] | None = None) -> None:
        self.provider, self.key = provider, ""
        self.ref: SandboxRef | None = None
        self._on_event = on_event
        self._began = time.monotonic()
        self._at: dict[Stage, float] = {}

    def emit(self, stage: Stage, message: str = "") -> None:
        """Tell one event."""
        now = time.monotonic()
        self._at.setdefault(stage, now)
        since = self._began if stage == "failed" else self._at.get(_TOOK.get(stage, stage), now)
        took = now - since if stage in _TOOK or stage == "failed" else None
        ref = self.ref.without_state() if self.ref is not None else None
        event = Event(stage, self.provider, self.key, ref, took, clean(mask(message)))
        level = logging.DEBUG if stage == "building" else logging.INFO
        _log.log(
            level,
            "%s %s%s%s%s",
            self.provider,
            stage,
            f" {ref.id}" if ref is not None else f" {self.key}" if self.key else "",
            f" ({took:.2f} s)" if took is not None else "",
            f": {event.message}" if event.message else "",
        )
        _observers.told(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("on_event raised")
