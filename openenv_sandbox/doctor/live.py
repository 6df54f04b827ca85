"""The live examination: one sandbox on one backend, each stage with its time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.events import Event

Stage = tuple[str, float, str]
"""What was done, its seconds, and what came of it."""

_STAGES = ("created", "ready", "connected", "stopped")


async def try_out(
    image: str,
    *,
    on_event: Callable[[Event], object] | None = None,
    reset: Mapping[str, Any] | None = None,
    **launch: Any,
) -> list[Stage]:
    """Create, run a command, speak to the server, delete.

    Args:
        image: An environment.
        on_event: Called with each event.
        reset: Arguments of reset.
        launch: Further arguments of `openenv_sandbox.launch`.

    Returns:
        The stages in order; nothing is left of the sandbox.

    Raises:
        OpenEnvError: What `openenv_sandbox.launch` and the client raise.
    """
    from openenv_sandbox import launch as start
    from openenv_sandbox.errors import CapabilityError

    stages: list[Stage] = []

    def watch(event: Event) -> None:
        if event.stage in _STAGES and event.duration_s is not None:
            stages.append((event.stage, event.duration_s, str(event.ref or "")))
        if on_event is not None:
            on_event(event)

    async with start(image, on_event=watch, **launch) as client:
        begin = time.monotonic()
        try:
            result = await client.sandbox.exec("echo from-inside", timeout=60)
            said = result.text().strip()
        except CapabilityError as error:
            said = error.message
        stages.append(("exec", time.monotonic() - begin, said))
        for name, call in (("reset", lambda: client.reset(**(reset or {}))), ("state", client.state)):
            begin = time.monotonic()
            await call()
            stages.append((name, time.monotonic() - begin, ""))
    return stages
