"""One server on our launcher, started and stopped by blocking calls, and known by its address alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from openenv_sandbox import pipeline, portal
from openenv_sandbox.client import addresses
from openenv_sandbox.errors import UsageError
from openenv_sandbox.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.events import Event
    from openenv_sandbox.request import Which

_running: set[Launched] = set()
"""Older code keeps the address and may drop the object; what it started stays until the process ends."""


class Launched:
    """At most one sandbox, which ends at the latest with the process.

    Args:
        backend: Name of the backend, or its class.
    """

    def __init__(self, backend: Which) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._started: pipeline.Started | None = None
        self._url = ""

    def start(
        self,
        image: str,
        *,
        options: Mapping[str, Any] | None = None,
        on_event: Callable[[Event], object] | None = None,
        **fields: Any,
    ) -> str:
        """Start the server and wait until it answers.

        Args:
            image: What `openenv_sandbox.launch` takes.
            options: Options of the backend.
            on_event: Told each stage.
            fields: Fields of the spec.

        Returns:
            Its address. A client made with it in this process also knows the headers and the token it takes.

        Raises:
            UsageError: One was started before and not stopped.
            OpenEnvError: What `openenv_sandbox.launch` raises.
        """
        with self._lock:
            if self._started is not None:
                raise UsageError("this provider has started a server already", hint="stop it, or make another provider")
            chosen = {name: value for name, value in (options or {}).items() if value is not None}
            given = {name: value for name, value in fields.items() if value is not None}
            request = Request(image, None, self._backend, chosen or None, on_event=on_event, fields=given)
            started = portal.run_sync(self._start, request)
            self._started = started
            _running.add(self)
            portal.closes_at_exit(self, type(self)._stop_at_exit)
        return self._url

    async def _start(self, request: Request) -> pipeline.Started:
        started = await pipeline.start(request, serve=True)
        assert started.endpoint is not None
        self._url = addresses.publish(
            addresses.Address(
                endpoint=started.endpoint,
                token=started.token,
                refresh=started.running._way,
                death=started.owner.death,
                sandbox=started.running,
                home=portal.loop(),
            )
        )
        return started

    def stop(self) -> None:
        """Delete the sandbox. Without one nothing happens.

        Raises:
            CleanupError: It could not be deleted; the journal knows of it.
        """
        with self._lock:
            started, self._started = self._started, None
            if started is None:
                return
            addresses.withdraw(self._url)
            _running.discard(self)
            portal.closed(self)
            portal.run_sync(started.running.stop)

    async def _stop_at_exit(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            await started.running.stop()

    @property
    def sandbox(self) -> Any:
        """The sandbox that runs now; None where there is none."""
        return None if self._started is None else self._started.running
