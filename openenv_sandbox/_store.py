"""The journal's file: synchronous, used on one thread only (`openenv_sandbox.journal`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sqlite3
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from openenv_sandbox import _paths, _runs
from openenv_sandbox.errors import JournalError
from openenv_sandbox.provider import SandboxRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

RowState = Literal["intent", "created", "detached", "pending_delete"]

SCHEMA = 1
BUSY_S = 15.0
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_OFF = "set OPENENV_STATE_DIR to a local folder of yours, or journal = off to give up cleaning after a crash"
_TABLE = """
CREATE TABLE IF NOT EXISTS sandboxes (
    key TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    scope TEXT NOT NULL,
    run TEXT NOT NULL,
    witness TEXT NOT NULL,
    state TEXT NOT NULL,
    ref_id TEXT,
    note TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    settle_until REAL NOT NULL,
    expires_at REAL,
    claimed_until REAL NOT NULL DEFAULT 0
)
"""


@dataclass(frozen=True)
class Row:
    """One sandbox, or the intention of one.

    Attributes:
        key: Ours, given to the backend at create.
        provider: Name of the backend.
        scope: What the id belongs to.
        run: The owner's run.
        state: ``intent`` before the backend answered, ``created``, ``detached`` (nobody owns it until it expires), or
            ``pending_delete``.
        ref_id: The backend's id; None while it is unknown.
        note: For people: what it was for.
        created_at: Unix time of the intention.
        updated_at: Unix time of the last change.
        settle_until: Unix time until which a create that was lost may still appear.
        expires_at: Unix time at which nobody wants it any more; None when that is unknown.
        alive: Whether the owner lives.
    """

    key: str
    provider: str
    scope: str
    run: str
    state: RowState
    ref_id: str | None
    note: str
    created_at: float
    updated_at: float
    settle_until: float
    expires_at: float | None
    alive: bool

    @property
    def ref(self) -> SandboxRef | None:
        """The sandbox's name without secrets; None while its id is unknown."""
        if self.ref_id is None:
            return None
        return SandboxRef(self.provider, self.scope, self.ref_id, self.key)


class Store:
    """The open file, this process's run, and the side files with what reattaching needs.

    Raises:
        JournalError: It cannot be opened or trusted; the sentence says what to do.
    """

    def __init__(self, folder: Path, *, network: bool = False) -> None:
        self.folder, self.file = folder, folder / "journal.db"
        self.refs, self.runs = folder / "refs", folder / "runs"
        self._witness = _runs.witness()
        kind = _paths.file_system(folder)
        if kind in _paths.NETWORK_TYPES and not network:
            raise JournalError(
                f"the state folder {folder} lies on a network file system ({kind}), where locks cannot be relied on",
                hint="set OPENENV_STATE_DIR to a local folder, or journal = network to accept that",
            )
        with self._explained("be opened"):
            self._make_folders()
            self.install_id = self._install_id()
            self._db = self._open(wal=kind not in _paths.NETWORK_TYPES)
        try:
            with self._explained("be opened"):
                self._lock = _runs.RunLock(self.runs)
                self.run_id = self._lock.run_id
                self._tidy()
        except BaseException:
            self._db.close()
            raise

    # ------------------------------------------------------------------------------------------------ changes

    def intent(
        self, key: str, provider: str, scope: str, settle_until: float, note: str, expires_at: float | None
    ) -> None:
        if not _KEY.match(key):
            raise JournalError(f"{key!r} is no key")
        now = time.time()
        with self._explained("be written"), self._db:
            self._db.execute(
                "INSERT INTO sandboxes (key, provider, scope, run, witness, state, note, created_at, updated_at,"
                " settle_until, expires_at) VALUES (?, ?, ?, ?, ?, 'intent', ?, ?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET settle_until = excluded.settle_until",
                (key, provider, scope, self.run_id, self._witness, note, now, now, settle_until, expires_at),
            )

    def created(self, ref: SandboxRef, expires_at: float | None) -> None:
        """The row of ``ref.key`` belongs to this run from now on, whoever had it before."""
        key, now = needs_key(ref), time.time()
        with self._explained("be written"):
            self._write_side(key, ref.state)
            with self._db:
                self._db.execute(
                    "INSERT INTO sandboxes (key, provider, scope, run, witness, state, ref_id, note, created_at,"
                    " updated_at, settle_until, expires_at) VALUES (?, ?, ?, ?, ?, 'created', ?, '', ?, ?, 0, ?)"
                    " ON CONFLICT (key) DO UPDATE SET state = 'created', ref_id = excluded.ref_id,"
                    " scope = excluded.scope, run = excluded.run, witness = excluded.witness,"
                    " updated_at = excluded.updated_at, expires_at = coalesce(excluded.expires_at, expires_at)",
                    (key, ref.provider, ref.scope, self.run_id, self._witness, ref.id, now, now, expires_at),
                )

    def change(self, key: str, state: RowState | None, expires_at: float | None) -> None:
        with self._explained("be written"), self._db:
            self._db.execute(
                "UPDATE sandboxes SET state = coalesce(?, state), expires_at = coalesce(?, expires_at), updated_at = ?"
                " WHERE key = ?",
                (state, expires_at, time.time(), key),
            )

    def remove(self, key: str) -> None:
        with self._explained("be written"):
            with self._db:
                self._db.execute("DELETE FROM sandboxes WHERE key = ?", (key,))
            self._side(key).unlink(missing_ok=True)

    def claim(self, keys: Iterable[str], seconds: float) -> list[str]:
        """Those of ``keys`` that no other process has claimed; they are this one's for ``seconds``."""
        now, won = time.time(), []
        with self._explained("be written"), self._db:
            for key in keys:
                cursor = self._db.execute(
                    "UPDATE sandboxes SET claimed_until = ? WHERE key = ? AND claimed_until < ?",
                    (now + seconds, key, now),
                )
                if cursor.rowcount:
                    won.append(key)
        return won

    def unclaim(self, keys: Iterable[str]) -> None:
        with self._explained("be written"), self._db:
            self._db.executemany("UPDATE sandboxes SET claimed_until = 0 WHERE key = ?", [(key,) for key in keys])

    # -------------------------------------------------------------------------------------------------- reads

    def rows(self, where: Mapping[str, str | None]) -> list[Row]:
        wanted = {name: value for name, value in where.items() if value is not None}
        clause = " AND ".join(f"{name} = ?" for name in wanted) or "1"
        with self._explained("be read"):
            found = self._db.execute(
                "SELECT key, provider, scope, run, state, ref_id, note, created_at, updated_at, settle_until,"
                f" expires_at, witness FROM sandboxes WHERE {clause} ORDER BY created_at, key",
                tuple(wanted.values()),
            ).fetchall()
        known: dict[tuple[str, str], bool] = {}
        return [Row(*(*line[:-1], self._alive(line[3], line[-1], known))) for line in found]

    def owner_alive(self, run: str) -> bool:
        return run == self.run_id or _runs.alive(self.runs, run)

    def state_of(self, key: str) -> dict[str, str]:
        """What reattaching needs; empty when nothing was kept."""
        try:
            with self._explained("be read"):
                kept = json.loads(self._side(key).read_text(encoding="utf-8"))
        except (ValueError, JournalError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def close(self) -> None:
        mine = self.rows({"run": self.run_id})
        self._lock.release(remove=not mine)
        self._db.close()

    def drop_in_child(self) -> None:
        self._lock.drop_in_child()

    # ------------------------------------------------------------------------------------------------ helpers

    def _alive(self, run: str, seen: str, known: dict[tuple[str, str], bool]) -> bool:
        if run == self.run_id:
            return True
        if (run, seen) not in known:
            known[run, seen] = _runs.alive(self.runs, run, seen)
        return known[run, seen]

    def _make_folders(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.refs, self.runs):
            folder.mkdir(mode=0o700, exist_ok=True)
        if sys.platform != "win32":
            owner, me = self.folder.stat().st_uid, os.geteuid()
            if owner != me:
                # As root by sudo, files made here would lock their owner out.
                raise JournalError(
                    f"the state folder {self.folder} belongs to user {owner}, this process runs as {me}", hint=_OFF
                )

    def _install_id(self) -> str:
        """A random name of this state folder; it carries no name of the machine or the user."""
        path = self.folder / "install-id"
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                text = path.read_text(encoding="ascii", errors="replace").strip()
                if not re.fullmatch(r"[0-9a-f]{16}", text):
                    raise JournalError(
                        f"{path} is damaged", hint="remove it; sandboxes labelled with the old id are then not ours"
                    )
                return text
            # Written beside and linked: of two processes that start at once, both read the winner's.
            fresh = self.folder / f".install-{secrets.token_hex(8)}"
            _write_private(fresh, secrets.token_hex(8))
            try:
                if hasattr(os, "link"):
                    with contextlib.suppress(FileExistsError):
                        os.link(fresh, path)
                elif not path.exists():
                    os.replace(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)
        raise JournalError(f"{path} cannot be made", hint=_OFF)

    def _open(self, *, wal: bool) -> sqlite3.Connection:
        # Made by us before SQLite sees it, so that it and its companions are never readable by others.
        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600))
        if sys.platform != "win32":
            os.chmod(self.file, 0o600)
        db = sqlite3.connect(self.file, timeout=BUSY_S, check_same_thread=False)
        try:
            # Refused by SQLite itself where memory cannot be shared; the rollback journal then does.
            db.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA fullfsync = ON")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA:
                raise JournalError(
                    f"the journal {self.file} was written by a newer openenv (format {version}, not {SCHEMA})",
                    hint="update openenv, or set OPENENV_STATE_DIR to another folder",
                )
            (sound,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise sqlite3.DatabaseError(sound)
            if version < SCHEMA:
                with db:
                    db.execute(_TABLE)
                    db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db

    def _tidy(self) -> None:
        with self._db:
            rows = self._db.execute("SELECT key, run FROM sandboxes").fetchall()
        keys, runs = {key for key, _ in rows}, {run for _, run in rows}
        for path in self.refs.iterdir():
            # A process that attaches writes the file first and the row a moment later.
            with contextlib.suppress(OSError):
                if path.stem not in keys and path.stat().st_mtime < time.time() - 3600:
                    path.unlink()
        _runs.sweep(self.runs, keep={*runs, self.run_id})

    def _side(self, key: str) -> Path:
        return self.refs / f"{key}.json"

    def _write_side(self, key: str, state: Mapping[str, str]) -> None:
        path = self._side(key)
        if not state:
            return
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        _write_private(fresh, json.dumps(dict(state)))
        os.replace(fresh, path)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Any:
        try:
            yield
        except JournalError:
            raise
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "not a database" in text or "malformed" in text or type(error) is sqlite3.DatabaseError:
                raise JournalError(
                    f"the journal {self.file} is damaged: {text}",
                    hint=f"move it away; `openenv gc` then finds what is labelled with {self.folder / 'install-id'}",
                ) from error
            raise JournalError(f"the journal {self.file} cannot {what}: {text}", hint=_OFF) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalError(f"the state folder {self.folder} cannot {what}: {reason}", hint=_OFF) from error


def needs_key(ref: SandboxRef) -> str:
    """The key of ``ref``, or the error that it cannot be journalled without one."""
    if ref.key is None or not _KEY.match(ref.key):
        raise JournalError(f"{ref} has no key of ours, so it cannot be journalled", ref=ref)
    return ref.key


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
