"""The handle that a client's method returns inside a running loop.

It runs when it is awaited, and in blocking mode when one of its result's attributes is touched; until then nothing is
sent. It counts as a coroutine, so ``asyncio.create_task``, ``gather`` and ``wait_for`` take it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Protocol

from openenv_sandbox.errors import UsageError

_UNSET: Any = object()
# What asyncio, inspect and IPython probe on an object; answering would run the call behind the user's back.
_PROBED = ("_", "cr_", "gi_", "ag_")


class Caller(Protocol):
    """What a handle needs of the client whose call it is."""

    def _enter(self) -> None:
        """The call is about to be awaited."""

    def _block(self, make: Callable[[], Coroutine[Any, Any, Any]], *, touched: str = "", pin: bool = True) -> Any:
        """Perform the call in this thread."""


class Handle(Coroutine[Any, Any, Any]):
    """A call that has not happened yet.

    Args:
        caller: The client.
        make: Makes the coroutine that performs the call.
        label: Name of the call, for its repr.
    """

    __slots__ = ("_caller", "_coro", "_failure", "_label", "_make", "_value")

    def __init__(self, caller: Caller, make: Callable[[], Coroutine[Any, Any, Any]], label: str) -> None:
        self._caller = caller
        self._make = make
        self._label = label
        self._coro: Coroutine[Any, Any, Any] | None = None
        self._value = _UNSET
        self._failure: BaseException | None = None

    async def _run(self) -> Any:
        if self._value is _UNSET:
            if self._failure is not None:
                raise self._failure
            try:
                self._caller._enter()
                self._value = await self._make()
            except Exception as error:
                self._failure = error
                raise
        return self._value

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._run().__await__()

    def send(self, value: Any) -> Any:
        """Drive the call, as an event loop does."""
        if self._coro is None:
            self._coro = self._run()
        return self._coro.send(value)

    def throw(self, *args: Any) -> Any:
        """Raise inside the call, as an event loop does to cancel it."""
        if self._coro is None:
            self._coro = self._run()
        return self._coro.throw(*args)

    def close(self) -> None:
        """Give the call up; before its start nothing was sent."""
        if self._coro is not None:
            self._coro.close()

    def resolve(self) -> Any:
        """Perform the call in blocking mode, once, and return its value."""
        if self._value is _UNSET:
            if self._failure is not None:
                raise self._failure
            self._value = self._caller._block(self._make, touched=self._label)
        return self._value

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_PROBED):
            raise AttributeError(name)
        return getattr(self.resolve(), name)

    def __bool__(self) -> bool:
        # A coroutine is true: so says this one until it has a value, as asyncio asks it for the repr of its task.
        return self._value is _UNSET or bool(self._value)

    def __getitem__(self, key: Any) -> Any:
        return self.resolve()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.resolve())

    def __len__(self) -> int:
        return len(self.resolve())

    def __contains__(self, item: Any) -> bool:
        return item in self.resolve()

    def __enter__(self) -> Any:
        return self.resolve().__enter__()

    def __exit__(self, *exc: Any) -> Any:
        return self.resolve().__exit__(*exc)

    def __repr__(self) -> str:
        if self._value is _UNSET:
            return f"<{self._label}() not sent yet: await it, or touch its result>"
        return repr(self._value)


def refuse_trio() -> None:
    """Say under trio what to do, instead of hanging.

    Raises:
        UsageError: This thread runs trio.
    """
    lowlevel = getattr(sys.modules["trio"], "lowlevel", None)
    if lowlevel is not None and getattr(lowlevel, "in_trio_run", lambda: False)():
        raise UsageError(
            "this client runs on asyncio and cannot be awaited under trio",
            hint="use client.sync() inside trio.to_thread.run_sync",
        )
