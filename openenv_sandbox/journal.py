"""What this user's processes made and have not yet removed, written down before it is made.

One file per user and machine. Every write is on disk before the call returns, and every call runs on one daemon
thread, so the event loop never waits for a disk. A row says ``intent`` before the request leaves, ``created`` once the
backend has answered, ``detached`` when its owner gave it up, ``pending_delete`` when it shall go and has not; it
disappears when the sandbox is certainly gone.
"""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from openenv_sandbox import _paths
from openenv_sandbox._store import Row as Row
from openenv_sandbox._store import RowState as RowState
from openenv_sandbox._store import Store, needs_key
from openenv_sandbox.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from openenv_sandbox.provider import SandboxRef

T = TypeVar("T")
Mode = Literal["on", "off", "network"]

_TOKEN = "openenv.token"
"""Beside the state of a ref; no backend's name contains a dot."""

CALL_S = 60.0
"""How long one call may take, in seconds; a disk that does not answer by then is an error."""


class _Rows(Protocol):
    """What the journal needs of the place where rows are kept."""

    run_id: str
    install_id: str

    def intent(
        self, key: str, provider: str, scope: str, settle_until: float, note: str, expires_at: float | None
    ) -> None: ...
    def created(self, ref: SandboxRef, expires_at: float | None) -> None: ...
    def change(self, key: str, state: RowState | None, expires_at: float | None) -> None: ...
    def remove(self, key: str) -> None: ...
    def claim(self, keys: Iterable[str], seconds: float) -> list[str]: ...
    def unclaim(self, keys: Iterable[str]) -> None: ...
    def rows(self, where: Mapping[str, str | None]) -> list[Row]: ...
    def owner_alive(self, run: str) -> bool: ...
    def state_of(self, key: str) -> dict[str, str]: ...
    def close(self) -> None: ...


class Journal:
    """The journal of this process and one state folder; from `Journal.open` or `open_journal`.

    Attributes:
        folder: The state folder; None where nothing is kept on disk.
        run_id: This process's run; label ``oe-run``.
        install_id: This state folder, at random; label ``oe-install``.
    """

    run_id: str
    install_id: str

    def __init__(self, folder: Path | None, *, network: bool = False) -> None:
        self.folder = folder
        self._network = network
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._closed = False
        self._store: _Rows | None = None
        self._jobs: queue.SimpleQueue[Callable[[_Rows | None, BaseException | None], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="openenv-journal", daemon=True).start()

    @classmethod
    async def open(cls, folder: Path | str | None = None, *, network: bool = False) -> Journal:
        """The journal of this process and state folder, opened on first use and shared from then on.

        Args:
            folder: The state folder; None for ``OPENENV_STATE_DIR``, else the platform's.
            network: Accept a network file system.

        Raises:
            JournalError: It cannot be opened: no permission, full, damaged, newer than this version, on a network.
        """
        journal = _share(folder, network)
        try:
            await journal._call(lambda store: None)
        except JournalError:
            if journal._store is None:
                journal._end()  # the next try may find the folder repaired
            raise
        return journal

    def new_key(self) -> str:
        """A key for one sandbox: ``oe-<run>-<random>``, which every backend takes as a name and label."""
        return f"oe-{self.run_id}-{secrets.token_hex(6)}"

    async def intent(
        self,
        key: str,
        provider: str,
        scope: str,
        settle_until: float,
        note: str = "",
        *,
        expires_at: float | None = None,
    ) -> None:
        """Write down that a sandbox is about to be asked for; on disk when this returns.

        A second intent of the same key only moves ``settle_until``.

        Args:
            key: From `new_key`.
            provider: Name of the backend.
            scope: `SandboxProvider.scope`.
            settle_until: Unix time after which a create that was lost cannot appear any more: now, plus the create
                timer, plus ``create_settle_s``.
            note: For people. No secrets.
            expires_at: Unix time at which nobody wants the sandbox any more.

        Raises:
            JournalError: It is not on disk; do not create.
        """
        from openenv_sandbox.redact import mask

        shown = mask(note)
        await self._call(lambda store: store.intent(key, provider, scope, settle_until, shown, expires_at))

    async def created(self, ref: SandboxRef, *, expires_at: float | None = None, token: str | None = None) -> None:
        """The backend answered; or, for an attached sandbox, this process owns it from now on.

        ``ref.state`` and ``token``, the server's, go to a file of their own that only this user can read.

        Raises:
            JournalError: It is not on disk, or ``ref`` has no key.
        """
        kept = replace(ref, state={**ref.state, _TOKEN: token}) if token else ref
        await self._call(lambda store: store.created(kept, expires_at))

    async def detached(self, key: str, *, expires_at: float | None = None) -> None:
        """Nobody owns it any more; it is left alone until it expires."""
        await self._call(lambda store: store.change(key, "detached", expires_at))

    async def extended(self, key: str, expires_at: float) -> None:
        """Its end has moved."""
        await self._call(lambda store: store.change(key, None, expires_at))

    async def pending_delete(self, key: str) -> None:
        """It shall go; whoever comes next completes that."""
        await self._call(lambda store: store.change(key, "pending_delete", None))

    async def close(self, key: str) -> None:
        """It is certainly gone. Closing what is not there succeeds."""
        await self._call(lambda store: store.remove(key))

    async def rows(
        self,
        *,
        provider: str | None = None,
        scope: str | None = None,
        run: str | None = None,
        key: str | None = None,
        state: RowState | None = None,
    ) -> list[Row]:
        """The rows that fit, oldest first."""
        where = {"provider": provider, "scope": scope, "run": run, "key": key, "state": state}
        return await self._call(lambda store: store.rows(where))

    async def claim(self, keys: Iterable[str], seconds: float) -> list[str]:
        """Those of ``keys`` that no other process works on; they are this one's for ``seconds``."""
        wanted = tuple(keys)
        return await self._call(lambda store: store.claim(wanted, seconds))

    async def unclaim(self, keys: Iterable[str]) -> None:
        """Undo `claim` for what is still there."""
        wanted = tuple(keys)
        await self._call(lambda store: store.unclaim(wanted))

    async def owner_alive(self, run: str) -> bool:
        """Whether the process of ``run`` lives."""
        return await self._call(lambda store: store.owner_alive(run))

    async def full_ref(self, ref: SandboxRef) -> SandboxRef:
        """``ref`` with the state that this user's journal kept for it, if ``ref`` has none of its own."""
        key = ref.key
        if ref.state or key is None:
            return ref
        kept = await self._call(lambda store: store.state_of(key))
        return replace(ref, state={name: value for name, value in kept.items() if name != _TOKEN})

    async def token_of(self, key: str) -> str | None:
        """The token of the server in a sandbox; None when this user's journal does not have it."""
        return (await self._call(lambda store: store.state_of(key))).get(_TOKEN)

    async def aclose(self) -> None:
        """End the run of this process, for every user of this journal. Rows stay; their owner counts as dead."""
        if self._closed or self._pid != os.getpid():
            return
        await self._call(lambda store: store.close())
        self._end()

    async def _call(self, job: Callable[[_Rows], T]) -> T:
        if self._pid != os.getpid():
            raise JournalError(
                "this journal belongs to the process that opened it", hint="open it again in the forked child"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone by then

        def run(store: _Rows | None, broken: BaseException | None) -> None:
            try:
                if store is None:
                    raise broken or JournalError("the journal is not open")
                value = job(store)
            except BaseException as error:
                _deliver(loop, future, future.set_exception, error)
            else:
                _deliver(loop, future, future.set_result, value)

        with self._gate:
            if self._closed:
                raise JournalError("this journal is closed", hint="open it again")
            self._jobs.put(run)
        done, _ = await asyncio.wait({future}, timeout=CALL_S)
        if not done:
            raise JournalError(f"the disk of {self.folder} did not answer within {CALL_S:g} s")
        return future.result()

    def _work(self) -> None:
        broken: BaseException | None = None
        try:
            self._store = store = self._make()
            self.run_id, self.install_id = store.run_id, store.install_id
        except BaseException as error:
            broken = error
        while (job := self._jobs.get()) is not None:
            job(self._store, broken)

    def _make(self) -> _Rows:
        assert self.folder is not None
        return Store(self.folder, network=self._network)

    def _end(self) -> None:
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        with _guard:
            if self.folder is not None and _shared.get(self.folder) is self:
                del _shared[self.folder]


class NullJournal(Journal):
    """``journal = off``: the same calls, kept in memory; nothing is cleaned up after a crash."""

    def __init__(self) -> None:
        self._memory = _Memory()
        self.run_id, self.install_id = self._memory.run_id, self._memory.install_id
        super().__init__(None)

    def _make(self) -> _Rows:
        return self._memory


class _Memory:
    """Rows of this process."""

    def __init__(self) -> None:
        self.run_id = secrets.token_hex(4)
        self.install_id = secrets.token_hex(8)
        self._rows: dict[str, Row] = {}
        self._states: dict[str, dict[str, str]] = {}

    def intent(
        self, key: str, provider: str, scope: str, settle_until: float, note: str, expires_at: float | None
    ) -> None:
        now = time.time()
        self._rows[key] = Row(
            key, provider, scope, self.run_id, "intent", None, note, now, now, settle_until, expires_at, True
        )

    def created(self, ref: SandboxRef, expires_at: float | None) -> None:
        key = needs_key(ref)
        if key not in self._rows:
            self.intent(key, ref.provider, ref.scope, 0.0, "", expires_at)
        self._rows[key] = replace(self._rows[key], ref_id=ref.id)
        self._states[key] = dict(ref.state)
        self.change(key, "created", expires_at)

    def change(self, key: str, state: RowState | None, expires_at: float | None) -> None:
        row = self._rows.get(key)
        if row is not None:
            end = row.expires_at if expires_at is None else expires_at
            self._rows[key] = replace(row, state=state or row.state, expires_at=end, updated_at=time.time())

    def remove(self, key: str) -> None:
        self._rows.pop(key, None)
        self._states.pop(key, None)

    def claim(self, keys: Iterable[str], seconds: float) -> list[str]:
        return [key for key in keys if key in self._rows]

    def unclaim(self, keys: Iterable[str]) -> None:
        """Nobody else could have wanted them."""

    def rows(self, where: Mapping[str, str | None]) -> list[Row]:
        wanted = [(name, value) for name, value in where.items() if value is not None]
        return [row for row in self._rows.values() if all(getattr(row, name) == value for name, value in wanted)]

    def owner_alive(self, run: str) -> bool:
        return run == self.run_id

    def state_of(self, key: str) -> dict[str, str]:
        return self._states.get(key, {})

    def close(self) -> None:
        self._rows.clear()
        self._states.clear()


async def open_journal(mode: Mode = "on") -> Journal:
    """The journal that the setting ``journal`` asks for.

    Raises:
        JournalError: It cannot be opened, and the setting does not say that this is accepted.
    """
    return NullJournal() if mode == "off" else await Journal.open(network=mode == "network")


_guard = threading.Lock()
_shared: dict[Path, Journal] = {}
# A forked child must not even close what it inherited: SQLite would take it for the last connection.
_inherited: list[Journal] = []


def _share(folder: Path | str | None, network: bool) -> Journal:
    path = Path(folder).absolute() if folder is not None else _paths.state_dir()
    with _guard:
        if path not in _shared:
            _shared[path] = Journal(path, network=network)
        return _shared[path]


def _deliver(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any
) -> None:
    def call() -> None:
        if not future.done():
            settle(outcome)

    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    for journal in _shared.values():
        if isinstance(journal._store, Store):
            journal._store.drop_in_child()
        _inherited.append(journal)
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
