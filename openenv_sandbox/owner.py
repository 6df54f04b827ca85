"""Who answers for a sandbox's end: the journal's row, the lease, the watch, and the delete that always happens."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from openenv_sandbox import portal, retry
from openenv_sandbox.breaker import breaker
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.errors import CleanupError, OpenEnvError, SandboxGone, ServerExited
from openenv_sandbox.keepalive import KeepAlive
from openenv_sandbox.lifecycle import finish, keep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openenv_sandbox.client.base import EnvClient
    from openenv_sandbox.events import Reporter
    from openenv_sandbox.exec_server import ExecServer
    from openenv_sandbox.journal import Journal
    from openenv_sandbox.provider import Exit, Sandbox, SandboxProvider, SandboxRef
    from openenv_sandbox.registry import Lease
    from openenv_sandbox.retry import Held
    from openenv_sandbox.spec import SandboxSpec
    from openenv_sandbox.starting import CreatedServer

DEATH_S = 2.0
"""How long a dead connection waits for the news that the server ended, in seconds."""

AT_EXIT_S = 30.0
_log = logging.getLogger("openenv.launch")
_live: dict[str, Ownership] = {}
_lock = threading.Lock()


def live_refs() -> list[SandboxRef]:
    """The sandboxes that this process owns now, without their secrets."""
    return [owner.ref.without_state() for owner in list(_live.values())]


class Ownership:
    """One sandbox of this process, from its creation to its end.

    Args:
        sandbox: The provider's object.
        lease: On its provider.
        journal: Where its row stands.
        spec: As the user sees it, with the whole lifetime.
        reporter: Told what happens.
        held: The place it takes among those that may live at once.
        forget: Secrets that need no masking any more when it is gone.
        owned: False for an attached sandbox that stays somebody else's: it has no row here.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        lease: Lease,
        journal: Journal,
        spec: SandboxSpec,
        reporter: Reporter,
        *,
        held: Held | None = None,
        forget: Callable[[], None] | None = None,
        owned: bool = True,
    ) -> None:
        self.sandbox, self.lease, self.journal, self.spec, self.reporter = sandbox, lease, journal, spec, reporter
        self.provider: SandboxProvider = lease.provider
        self.key = sandbox.ref.key or sandbox.ref.id
        self.server: CreatedServer | ExecServer | None = None
        self.keep_alive: KeepAlive | None = None
        self.owned = owned
        self.home = asyncio.get_running_loop()
        self.clock = CLOCK.get()
        self.born = self.clock.time()
        self.ready_at: float | None = None
        self.released_idle = False
        self.after: Callable[[], Awaitable[None]] | None = None  # once it is gone, or somebody else's
        self._held, self._forget = held, forget
        self._deleting: asyncio.Task[None] | None = None
        self._gone = self._dropped = self._fresh = False
        self._watch: asyncio.Task[Exit] | None = None
        if owned:
            _register(self)

    @property
    def ref(self) -> SandboxRef:
        """The sandbox."""
        return self.sandbox.ref

    # ---------------------------------------------------------------------------------------------------- using

    def start_keep_alive(self, lease: float) -> None:
        """Renew the lease from now on, as long as this process owns the sandbox."""
        timeouts = self.spec.timeouts
        self.keep_alive = KeepAlive(
            self.sandbox,
            self.provider.effective_capabilities(),
            lease=lease,
            renew=lease < timeouts.effective_lifetime,
            idle=timeouts.idle,
            on_idle=self._let_go,
            extended=self._extended,
            end=timeouts.effective_lifetime,
            on_end=self._expire,
        )
        self.keep_alive.start()

    def count_use(self, thing: object, method: str) -> None:
        """Have calls of one coroutine method of ``thing`` count as use of the sandbox."""
        if self.keep_alive is not None and self.spec.timeouts.idle is not None:
            setattr(thing, method, self.keep_alive.counts(getattr(thing, method)))

    def serves(self, client: EnvClient[Any, Any, Any]) -> Callable[[], Awaitable[OpenEnvError | None]]:
        """A client uses the server, which answered: its calls count as use; returns what tells why it is dead."""
        if self._watch is None and self.server is not None:
            self.watch()
        self.count_use(client, "_request")
        return self.death

    async def _extended(self, end: float) -> None:
        await self.journal.extended(self.key, end)

    async def _let_go(self) -> None:
        self.released_idle = True
        self.reporter.emit("stopping", f"unused for {self.spec.timeouts.idle:g} s")
        await self.delete(confirm=False)

    async def _expire(self) -> None:
        self.reporter.emit("stopping", f"its lifetime of {self.spec.timeouts.effective_lifetime:g} s is over")
        await self.delete(confirm=False)

    def watch(self, *, fresh: bool = True) -> None:
        """From ready on: notice its end; where it is ``fresh``, tell the breaker about early ones."""
        self.ready_at, self._fresh = time.monotonic(), fresh
        from openenv_sandbox.ready import lasting_exit

        assert self.server is not None
        self._watch = keep(lasting_exit(self.server), name="openenv-watch")
        self._watch.add_done_callback(self._ended)
        if fresh:
            self.home.call_later(breaker(self.provider.name).young, self._survived)

    def _survived(self) -> None:
        if self._watch is not None and not self._watch.done():
            breaker(self.provider.name).survived()

    def _ended(self, watch: asyncio.Task[Exit]) -> None:
        if watch.cancelled() or self._gone or self._deleting is not None or self.ready_at is None:
            return
        error = watch.exception()
        why = f"exit code {watch.result().code}" if error is None else str(error)
        if self._fresh:
            breaker(self.provider.name).died(f"the server ended: {why}", after_ready=time.monotonic() - self.ready_at)
        self.reporter.emit("failed", f"the server ended: {why}")

    async def death(self) -> OpenEnvError | None:
        """Why the sandbox is dead; None when nothing says that it is. For a client whose connection broke."""
        if self.released_idle:
            return SandboxGone(
                f"the sandbox was let go after {self.spec.timeouts.idle:g} s without use",
                ref=self.ref,
                hint="launch again, or raise timeouts.idle",
            )
        if self._watch is None:
            return None
        await asyncio.wait({self._watch}, timeout=DEATH_S)
        if not self._watch.done() or self._watch.cancelled():
            return None
        ended = None if self._watch.exception() is not None else self._watch.result()
        if ended is None or not await self._exists():
            asked, age = self.spec.timeouts.effective_lifetime, self.clock.time() - self.born
            why = f"{ended.reason}; " if ended is not None and ended.reason else ""
            return SandboxGone(
                f"the sandbox no longer exists: it ended by itself {age:.0f} s after its start "
                f"({why}lifetime {asked:g} s)",
                ref=self.ref,
                hint="launch again and begin at reset(); an episode that was cut is no result",
            )
        from openenv_sandbox.ready import exit_hint, tail_text

        return ServerExited(
            f"the server exited with {ended}",
            exit_code=ended.code,
            log=tail_text(ended.tail),
            ref=self.ref,
            hint=exit_hint(ended.code),
        )

    async def _exists(self) -> bool:
        try:
            found = await asyncio.wait_for(self.provider.find(self.key), DEATH_S)
        except Exception:
            return True
        return bool(found)

    # --------------------------------------------------------------------------------------------------- ending

    async def delete(self, *, confirm: bool = False) -> None:
        """Delete it; with ``confirm`` wait until the backend says that it is gone. May be called twice.

        Whatever happens to the caller meanwhile, the delete goes on.

        Raises:
            CleanupError: It may be left; the journal remembers it.
        """
        if self._gone:
            return
        timeout = self.spec.timeouts.cleanup
        result = await finish(self._delete_once(confirm), timeout=timeout)
        if result.done and result.error is None:
            return
        why = f"did not end within {timeout:g} s" if result.error is None else f"failed: {result.error}"
        error = CleanupError(
            f"deleting the sandbox {why}",
            ref=self.ref.without_state(),
            left=[self.ref],
            hint="it goes on in the background; the next openenv process, or `openenv gc`, completes it",
        )
        raise error from result.error

    async def _delete_once(self, confirm: bool) -> None:
        here = asyncio.get_running_loop()
        if self.home is not here and self.home.is_running():
            call = asyncio.run_coroutine_threadsafe(self._delete_once(confirm), self.home)
            await asyncio.wrap_future(call)
            return
        task = self._deleting
        if task is None or task.get_loop() is not here or (task.done() and not self._gone):
            task = self._deleting = keep(self._delete(), name="openenv-delete")
        await asyncio.shield(task)
        if confirm:
            await self._confirm()

    async def _delete(self) -> None:
        self._stop_local()
        self.reporter.emit("stopping")
        if self.owned:
            # Without the disk the delete matters all the more.
            await quietly(self.journal.pending_delete(self.key))
        provider = self._usable_provider()
        await delete_ref(provider, self.ref, deadline=self._patience)
        await self._certainly_gone()

    @property
    def _patience(self) -> float:
        # Past the caller's timer the delete still goes on for a while by itself.
        return max(60.0, 4 * self.spec.timeouts.cleanup)

    def _usable_provider(self) -> SandboxProvider:
        if self.home is asyncio.get_running_loop():
            return self.provider
        # The loop it belonged to has ended with the sandbox still there. At exit no thread can be started for it.
        self.provider = type(self.provider)(self.provider.options)
        return self.provider

    async def _confirm(self) -> None:
        if self.provider.capabilities.findable == "none":
            return
        wait = 0.05
        while await self.provider.find(self.key):
            await asyncio.sleep(wait)
            wait = min(2.0, wait * 1.5)

    async def _certainly_gone(self) -> None:
        self._gone = True
        if self.owned:
            await quietly(self.journal.close(self.key))
        self.reporter.emit("stopped")
        await self._drop()

    async def detach(self) -> None:
        """Give up ownership; it lives on to the end of its lifetime."""
        if self._gone:
            return
        end: float | None = None
        if self.keep_alive is not None and self.provider.effective_capabilities().lifetime == "server-extendable":
            left = self.born + self.spec.timeouts.effective_lifetime - self.clock.time()
            if left > 0 and (self.sandbox.info.expires_at or 0.0) < self.clock.time() + left:
                end = await self.sandbox.extend(left)
        self._stop_local()
        if self.owned:
            await self.journal.detached(self.key, expires_at=end)
        self._gone = True
        await self._drop()

    async def release(self) -> None:
        """Drop local resources only; this process stays the owner."""
        self._stop_local()
        if self.server is not None:
            self.server.stop()
        await self._release_lease()

    def _stop_local(self) -> None:
        if self.keep_alive is not None:
            self.keep_alive.stop()
        if self._watch is not None and not self._watch.get_loop().is_closed():
            self._watch.cancel()

    async def _drop(self) -> None:
        """Everything local, once the sandbox is gone or somebody else's."""
        with _lock:
            _live.pop(self.key, None)
        portal.closed(self)
        if self.server is not None:
            self.server.stop()
        if self._held is not None:
            self._held.release()
        if self._forget is not None:
            self._forget()
        if self.after is not None:
            await quietly(self.after())
        await self._release_lease()

    async def _release_lease(self) -> None:
        if self._dropped:
            return
        self._dropped = True
        try:
            await self.sandbox.aclose()
        except Exception as error:
            _log.debug("closing local resources of %s: %s", self.ref, error)
        if self.home is asyncio.get_running_loop():
            await self.lease.release()
        else:
            await self.provider.aclose()


# ------------------------------------------------------------------------------------------------- process exit


def _register(owner: Ownership) -> None:
    global _hooked
    with _lock:
        _live[owner.key] = owner
        first, _hooked = not _hooked, True
    if first:
        atexit.register(_at_exit, os.getpid())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_live.clear)
    if owner.home is portal._loop:
        portal.closes_at_exit(owner, _close)


_hooked = False


async def _close(owner: Ownership) -> None:
    await owner.delete(confirm=False)


def _at_exit(pid: int) -> None:
    """``sys.exit`` without ``async with``: what still lives is deleted, bounded, while modules are still there."""
    # A loop that still runs, in a daemon thread, deletes its own; the portal's has a hook of its own.
    left = [owner for owner in list(_live.values()) if owner.home is not portal._loop or not owner.home.is_running()]
    if pid != os.getpid() or not left:
        return

    async def close() -> None:
        tasks = [keep(_close(owner)) for owner in left]
        await asyncio.wait(tasks, timeout=AT_EXIT_S)

    _log.info("deleting %d sandboxes at exit", len(left))
    try:
        asyncio.run(close())
    except Exception as error:
        _log.warning("at exit: %s", error)


async def delete_ref(provider: SandboxProvider, ref: SandboxRef, *, deadline: float) -> None:
    """Delete by name, with retries; what is not there is gone.

    Raises:
        OpenEnvError: It may be left.
    """
    if ref.scope != provider.scope():
        raise CleanupError(f"{ref} belongs to another account or daemon", ref=ref, left=[ref])
    try:
        await retry.call(lambda: provider.delete(ref), deadline=deadline, provider=provider.name)
    except SandboxGone:
        return


async def quietly(closing: Awaitable[Any]) -> None:
    """Await cleanup of a detail whose failure changes nothing."""
    try:
        await closing
    except Exception as error:
        _log.debug("cleanup: %s", error)
