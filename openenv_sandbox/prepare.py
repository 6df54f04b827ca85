"""Preparing an image once, however many launches want it at the same moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from openenv_sandbox.errors import BuildError
from openenv_sandbox.lifecycle import keep

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.provider import Image, Prepared, SandboxProvider
    from openenv_sandbox.pushing import Push
    from openenv_sandbox.spec import SandboxSpec

LOG_LINES = 50
_log = logging.getLogger("openenv.launch")
_flights: dict[tuple[object, ...], _Flight] = {}


class _Flight:
    """One preparation and those who wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.sinks: list[Callable[[str], None]] = []
        self.tail: deque[str] = deque(maxlen=LOG_LINES)
        self.task: asyncio.Task[Prepared]

    def log(self, line: str) -> None:
        self.tail.append(line)
        for sink in list(self.sinks):
            sink(line)


async def prepare(
    provider: SandboxProvider,
    spec: SandboxSpec,
    image: Image,
    *,
    on_log: Callable[[str], None],
    push: Push | None = None,
) -> Prepared:
    """What the backend boots for ``image``, which is built and pushed before where ``push`` says so.

    Launches of one loop that want the same share one preparation: its output goes to all, its failure too. It is
    given up only when nobody waits for it any more.

    Raises:
        BuildError: It failed, or took longer than the timer ``prepare``; carries the last lines of the output.
        ImageError: The image does not exist or cannot be booted.
    """
    key = (asyncio.get_running_loop(), provider.scope(), provider.prepare_key(spec, image), spec.pull)
    flight = _flights.get(key)
    if flight is None:
        flight = _flights[key] = _Flight()
        flight.task = keep(_prepared(provider, spec, image, push, flight.log), name="openenv-prepare")
        flight.task.add_done_callback(lambda _: _flights.pop(key, None))
    flight.waiting += 1
    for line in flight.tail:  # what was said before this one came
        on_log(line)
    flight.sinks.append(on_log)
    try:
        done, _ = await asyncio.wait({flight.task}, timeout=spec.timeouts.prepare)
        if not done:
            raise BuildError(
                f"preparing {image.name} took longer than {spec.timeouts.prepare:g} s",
                provider=provider.name,
                log="\n".join(flight.tail),
                hint="raise timeouts.prepare",
            )
        return flight.task.result()
    except BuildError as error:
        error.log = error.log or "\n".join(flight.tail)
        raise
    finally:
        flight.sinks.remove(on_log)
        flight.waiting -= 1
        if flight.waiting == 0 and not flight.task.done():
            _flights.pop(key, None)
            flight.task.cancel()
            with contextlib.suppress(RuntimeError):
                _log.debug("nobody waits for %s any more", image.name)


async def _prepared(
    provider: SandboxProvider, spec: SandboxSpec, image: Image, push: Push | None, log: Callable[[str], None]
) -> Prepared:
    if push is not None:
        mine = {name: value for name, value in spec.labels.items() if name == "oe-install"}
        image = await push.run(mine, on_log=log)
    return await provider.prepare(spec, image, on_log=log)
