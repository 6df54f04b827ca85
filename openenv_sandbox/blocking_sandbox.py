"""The blocking face of a sandbox: the same methods, performed by the background loop."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from openenv_sandbox import portal

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.client.sync import SyncEnvClient
    from openenv_sandbox.running import RunningSandbox


class BlockingSandbox:
    """What ``sandbox(...).sync()`` returns; every coroutine method of `RunningSandbox` blocks here.

    Args:
        running: A sandbox that lives in the background loop.
    """

    def __init__(self, running: RunningSandbox) -> None:
        self._running = running

    @property
    def async_sandbox(self) -> RunningSandbox:
        """The sandbox this one wraps; it belongs to the background loop."""
        return self._running

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._running, name)
        if not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            return portal.run_sync(functools.partial(value, *args, **kwargs))

        return call

    def client(self, cls: type[EnvClient[Any, Any, Any]] | None = None) -> SyncEnvClient[Any, Any, Any]:
        """A connected blocking client of the server in it; closing it leaves the sandbox.

        Args:
            cls: Class of the client; None for `GenericEnvClient`.

        Raises:
            OpenEnvError: What `RunningSandbox.client` raises.
        """
        from openenv_sandbox import serving

        face = portal.run_sync(functools.partial(serving.bound, self._running, cls)).sync()
        try:
            face.connect()
        except BaseException:
            face.close()
            raise
        return face

    def __repr__(self) -> str:
        return f"<BlockingSandbox {self._running.ref}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            portal.run_sync(self._running.stop)
        except Exception as second:
            if error is None:
                raise
            from openenv_sandbox.creating import note

            note(error, str(second))
