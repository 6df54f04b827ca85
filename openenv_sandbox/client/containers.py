"""The ``provider=`` of older code: an object that starts a container at the first call and stops it at the close."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

from openenv_sandbox.client import addresses
from openenv_sandbox.errors import ConfigError
from openenv_sandbox.lifecycle import UNDO_S, finish, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

Face = Literal["async", "sync"]


class OwnContainer:
    """What a client does with such an object."""

    _provider: Any
    _provider_runs: bool
    _base_url: str
    _face: Face | None

    _endpoint: Any
    _refresh: Any
    _token: str | None
    _death: Any
    _sandbox: Any
    _home: Any

    def _recognise(self) -> None:
        """Take over what belongs to an address that this process handed out."""
        known = addresses.find(self._base_url)
        if known is not None:
            self._endpoint, self._token, self._refresh = known.endpoint, known.token, known.refresh
            self._death, self._sandbox, self._home = known.death, known.sandbox, known.home

    async def _start_provider(self) -> None:
        """Start the container provider given to the constructor, once."""
        provider = self._provider
        if provider is None or self._base_url or self._provider_runs:
            return
        start = getattr(provider, "start_container", None) or getattr(provider, "start", None)
        if start is None:
            raise ConfigError(f"{type(provider).__name__} has neither start_container() nor start()")
        needed = [
            p.name
            for p in inspect.signature(start).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        if needed:
            raise ConfigError(
                f"{type(provider).__name__}.{start.__name__}() needs {', '.join(needed)}",
                hint="start it yourself and pass base_url=",
            )
        self._provider_runs = True
        try:
            url = await self._in_thread(start)
            self._base_url = str(url).rstrip("/")
            self._recognise()
            ready = getattr(provider, "wait_for_ready", None)
            if ready is not None:
                await self._in_thread(ready, self._base_url)
        except BaseException:
            if self._face == "async":
                await finish(self._stop_provider(), timeout=UNDO_S)
            else:  # the blocking face has no loop, so nothing else can cancel this
                await self._stop_provider()
            raise

    async def _stop_provider(self) -> None:
        if self._provider_runs:
            self._provider_runs = False
            self._base_url = ""
            await self._in_thread(self._stopping())

    def _stopping(self) -> Callable[[], Any]:
        methods = (getattr(self._provider, name, None) for name in ("stop_container", "stop", "close"))
        return next(filter(None, methods), _nothing)

    async def _in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self._face == "async":
            return await in_thread(fn, *args)
        return fn(*args)


def _nothing() -> None:
    """For an object that cannot be stopped."""
