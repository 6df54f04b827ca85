"""Provider instances in use: one per running loop, class and options, closed with its last lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import OpenEnvError, ProviderError
from openenv_sandbox.lifecycle import daemon_call

if TYPE_CHECKING:
    from types import TracebackType

    from openenv_sandbox.provider import SandboxProvider

CLOSE_S = 10.0
"""How long closing a provider may take, in seconds, before it is left behind."""

_log = logging.getLogger("openenv.provider")
_lock = threading.Lock()
_slots: list[_Slot] = []
_closing: set[asyncio.Task[None]] = set()


class Lease:
    """The right to use a provider until `release`; also an async context manager that yields the provider."""

    def __init__(self, provider: SandboxProvider, slot: _Slot | None) -> None:
        self.provider = provider
        self._slot = slot

    def again(self) -> tuple[Any, Any]:
        """Provider and options with which `openenv_sandbox.registry.acquire` gives the same instance once more."""
        return (self.provider, None) if self._slot is None else (self._slot.cls, self._slot.options)

    async def release(self) -> None:
        """Give it back; the last one closes the provider, within 10 seconds. May be called twice."""
        slot, self._slot = self._slot, None
        if slot is None or slot.loop.is_closed():
            return
        if slot.loop is asyncio.get_running_loop():
            await slot.drop()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(slot.drop(), slot.loop))

    async def __aenter__(self) -> SandboxProvider:
        return self.provider

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


class _Slot:
    """One shared instance, from the first lease to the last."""

    def __init__(self, cls: type[SandboxProvider], options: Any) -> None:
        self.cls, self.options = cls, options
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.built: asyncio.Task[SandboxProvider] = self.loop.create_task(self._build())
        # Every waiter may have been cancelled by the time it fails.
        self.built.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _build(self) -> SandboxProvider:
        try:
            return await daemon_call(_construct, self.cls, self.options)
        except OpenEnvError:
            raise
        except Exception as error:
            from openenv_sandbox.redact import clean, mask

            raise ProviderError(
                f"the {self.cls.title} backend could not be set up: {clean(mask(f'{type(error).__name__}: {error}'))}",
                provider=self.cls.name,
            ) from error

    async def drop(self) -> None:
        self.users -= 1
        if self.users > 0:
            return
        with _lock, contextlib.suppress(ValueError):
            _slots.remove(self)
        task = self.loop.create_task(self._close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)
        await asyncio.shield(task)

    async def _close(self) -> None:
        try:
            provider = await self.built
        except BaseException:
            return  # nothing was made; whoever asked has the error
        closing = self.loop.create_task(provider.aclose())
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_S)
        if not done:
            closing.cancel()
            _log.warning("closing the %s backend took more than %g s; it is left behind", self.cls.name, CLOSE_S)
        elif not closing.cancelled() and closing.exception() is not None:
            _log.warning("closing the %s backend failed: %s", self.cls.name, closing.exception())


def _construct(cls: type[SandboxProvider], options: Any) -> SandboxProvider:
    try:
        return cls(options)
    except SystemExit as error:  # an SDK that exits on bad settings ends this call, not the program
        raise ProviderError(
            f"the {cls.title} SDK tried to exit the process ({error.code})", provider=cls.name
        ) from None


def lent(provider: SandboxProvider) -> Lease:
    """A lease on an instance that somebody else owns."""
    return Lease(provider, None)


async def lease(cls: type[SandboxProvider], options: Any) -> Lease:
    """A lease on the running loop's instance of ``cls`` with ``options``."""
    loop = asyncio.get_running_loop()
    with _lock:
        # A loop that ended without releasing keeps nothing alive.
        _slots[:] = [slot for slot in _slots if not slot.loop.is_closed()]
        # Equality, not a hash: options may hold lists, and secrets have no printable form.
        slot = next((s for s in _slots if s.loop is loop and s.cls is cls and s.options == options), None)
        if slot is None:
            slot = _Slot(cls, options)
            _slots.append(slot)
        slot.users += 1
    try:
        return Lease(await asyncio.shield(slot.built), slot)
    except BaseException:
        failed = slot.built.done()
        if failed:
            with _lock, contextlib.suppress(ValueError):
                _slots.remove(slot)
        await slot.drop() if failed else _drop_later(slot)
        raise


def _drop_later(slot: _Slot) -> None:
    """A cancelled waiter must not wait for the constructor it no longer wants."""
    task = slot.loop.create_task(slot.drop())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
