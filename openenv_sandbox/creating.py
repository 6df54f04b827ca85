"""From a checked spec to a sandbox that is in the journal, or to nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any, cast

from openenv_sandbox import retry
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.errors import CreateTimeout, OpenEnvError
from openenv_sandbox.lifecycle import finish, keep
from openenv_sandbox.owner import delete_ref, quietly

if TYPE_CHECKING:
    from openenv_sandbox.events import Reporter
    from openenv_sandbox.journal import Journal
    from openenv_sandbox.provider import Prepared, Sandbox, SandboxProvider, SandboxRef
    from openenv_sandbox.spec import SandboxSpec

UNDO_S = 600.0
_log = logging.getLogger("openenv.launch")


class _Counted:
    """A provider whose creates are counted, so that undoing knows whether any request left."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self.calls, self.running, self.unknown = 0, False, False
        self.made: Sandbox | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        self.calls, self.running = self.calls + 1, True
        try:
            self.made = await self._provider.create(prepared, spec, key=key)
            return self.made
        except OpenEnvError as error:
            self.unknown |= error.outcome == "unknown"
            raise
        except BaseException:
            self.unknown = True
            raise
        finally:
            self.running = False


class Creation:
    """One create, which is never cancelled once its request left.

    Args:
        provider: The backend.
        journal: Has the intent already.
        key: Of the sandbox.
        spec: Complete.
        reporter: Told what happens.
        expires_at: For the journal, Unix time.
        token: The server's, for whoever attaches.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        journal: Journal,
        key: str,
        spec: SandboxSpec,
        reporter: Reporter,
        expires_at: float,
        token: str | None = None,
    ) -> None:
        self.token = token
        self.provider, self.journal, self.key, self.spec = provider, journal, key, spec
        self.reporter, self.expires_at = reporter, expires_at
        self._counted = _Counted(provider)
        self._task: asyncio.Task[Sandbox] | None = None
        self._settle_until = 0.0
        self.held: retry.Held | None = None

    async def take_place(self) -> None:
        """Wait until one more sandbox may live, where the backend's limit is known. Before anything is written.

        Raises:
            CreateTimeout: None ended within the timer ``create``; says how many are in use.
        """
        limit = self.provider.effective_capabilities().max_concurrency
        if limit is not None:
            gate = retry.gate(self.provider.name, self.provider.scope(), live=limit)
            self.held = await gate.slot(timeout=self.spec.timeouts.create)

    def _give_place_back(self) -> None:
        if self.held is not None:
            self.held.release()

    async def run(self, prepared: Prepared) -> Sandbox:
        """Create, and write down what came of it.

        Raises:
            CreateTimeout: It took longer than the timer ``create``.
            OpenEnvError: What the backend said.
        """
        caps = self.provider.effective_capabilities()
        timer = self.spec.timeouts.create
        gate = retry.gate(self.provider.name, self.provider.scope(), live=caps.max_concurrency)
        self._settle_until = CLOCK.get().time() + timer + caps.create_settle_s
        self.reporter.emit("creating")
        self._task = keep(self._create(prepared, timer, gate), name="openenv-create")
        await asyncio.wait({self._task}, timeout=timer)
        if not self._task.done():
            raise CreateTimeout(
                f"{self.provider.name} did not create the sandbox within {timer:g} s",
                provider=self.provider.name,
                outcome="unknown" if self._counted.calls else "failed",
                hint="raise timeouts.create; what was asked for is being removed",
            )
        try:
            return self._task.result()
        except OpenEnvError as error:
            error.message += f" (creating from {prepared.ref})"
            raise

    async def _create(self, prepared: Prepared, timer: float, gate: retry.Gate) -> Sandbox:
        provider = cast("SandboxProvider", self._counted)
        sandbox = await retry.create(provider, prepared, self.spec, key=self.key, deadline=timer, turn=gate)
        # In the same task: a cancelled launch must find the row that says what to delete.
        await self.journal.created(sandbox.ref, expires_at=self.expires_at, token=self.token)
        return sandbox

    async def undo(self, error: BaseException) -> bool:
        """Leave nothing, whatever the create still does; adds to ``error`` what could not be cleaned in time.

        Returns:
            Whether nothing is left for certain.
        """
        timeout = self.spec.timeouts.cleanup
        result = await finish(self._undo(), timeout=timeout)
        if result.done and result.error is None and result.value:
            return True
        if not result.done:
            await finish(quietly(self.journal.pending_delete(self.key)), timeout=5)
            note(error, f"cleanup of {self.key} takes longer than {timeout:g} s; it goes on in the background")
        elif result.error is not None:
            note(error, f"cleanup of {self.key} failed: {result.error}; `openenv gc` completes it")
        else:
            note(error, f"a sandbox with key {self.key} may still appear; it is looked for, and `openenv gc` finds it")
        return False

    async def _undo(self) -> bool:
        task, counted = self._task, self._counted
        if task is None:
            await self.journal.close(self.key)
            self._give_place_back()
            return True
        if not task.done() and not counted.running and counted.made is None:
            task.cancel()  # it waits for its turn, or between two tries: no request is on its way
        await asyncio.wait({task})
        refs: list[SandboxRef] = []
        if not task.cancelled() and task.exception() is None:
            refs = [task.result().ref]
        elif counted.made is not None:
            refs = [counted.made.ref]
        elif counted.calls and counted.unknown:
            refs = await self._found()
            if not refs:
                keep(self._look_later(), name="openenv-settle")
                return False
        await self._delete(refs)
        return True

    async def _found(self) -> list[SandboxRef]:
        if self.provider.capabilities.findable == "none":
            return []
        found = await retry.call(lambda: self.provider.find(self.key), deadline=UNDO_S, provider=self.provider.name)
        return [ref for ref in found if ref.key == self.key]

    async def _delete(self, refs: list[SandboxRef]) -> None:
        if refs:
            self.reporter.ref = refs[0]
            self.reporter.emit("stopping")
            await quietly(self.journal.pending_delete(self.key))
        for ref in refs:
            await delete_ref(self.provider, ref, deadline=UNDO_S)
        self._give_place_back()
        await self.journal.close(self.key)
        if refs:
            self.reporter.emit("stopped")

    async def _look_later(self) -> None:
        """A create that was lost may appear until the backend's time is over; only then its row is closed."""
        clock, wait = CLOCK.get(), 0.5
        try:
            while clock.time() < self._settle_until:
                await clock.sleep(min(wait, self._settle_until - clock.time()))
                wait *= 2
                if refs := await self._found():
                    await self._delete(refs)
                    return
            await self._delete(await self._found())
        except Exception as error:
            _log.warning("could not look for %s again (`openenv gc` will): %s", self.key, error)


def labels_for(spec: SandboxSpec, journal: Journal, key: str, expires_at: float) -> dict[str, str]:
    """The user's labels and ours."""
    from openenv_sandbox import reaper

    own = {
        reaper.INSTALL: journal.install_id,
        reaper.RUN: journal.run_id,
        reaper.KEY: key,
        reaper.EXPIRES: str(int(expires_at)),
    }
    return {**spec.labels, **own}


def note(error: BaseException, text: str) -> None:
    """Add a line below an error without changing what it says."""
    from openenv_sandbox.redact import mask

    text = mask(text)
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        notes = getattr(error, "__notes__", [])
        error.__notes__ = [*notes, text]  # type: ignore[attr-defined,unused-ignore]
