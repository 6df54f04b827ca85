"""Removing what dead owners left: in the background at every launch, and all of it by `gc`.

What is removed is ours beyond doubt: a row of this user's journal in the scope the backend answers for, or a sandbox
whose labels carry this state folder's install id. Two users, or two state folders, of one account never touch each
other's; what another install let expire is removed only when asked for by name (``expired_any``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from openenv_sandbox._reap_report import Item, ReapReport, Unseen, Wish
from openenv_sandbox.errors import OpenEnvError
from openenv_sandbox.values import EXPIRES, INSTALL, KEY, RUN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from openenv_sandbox.config import Settings
    from openenv_sandbox.journal import Journal, Row
    from openenv_sandbox.provider import Prepared, SandboxInfo, SandboxProvider, SandboxRef
    from openenv_sandbox.registry import Lease

    _Job = tuple["Item", Callable[[], Coroutine[Any, Any, None]]]

__all__ = ["EXPIRES", "INSTALL", "KEY", "RUN", "Item", "ReapReport", "Unseen", "Wish", "gc", "reap"]

_log = logging.getLogger("openenv.journal")

AT_ONCE = 4
ITEM_S = 60.0
BUDGET_S = 120.0
CLAIM_S = 300.0
STALLED_S = 60.0
"""A pending delete that its living owner has not completed for so long is completed by whoever comes."""


async def reap(
    provider: SandboxProvider,
    journal: Journal,
    *,
    wish: Wish | None = None,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.time,
) -> ReapReport:
    """Remove what dead owners left in ``provider``'s scope.

    Never raises: what fails is in the report and in the log, and its row stays for the next time.

    Args:
        provider: The backend; only its own scope is looked at.
        journal: This user's.
        wish: What to remove; None for what a launch removes.
        budget_s: Seconds for everything; what is not reached is reported as kept.
        clock: Unix seconds.
    """
    wish = wish or Wish(claim=True)
    report = ReapReport(dry_run=wish.dry_run)
    try:
        await _Reaper(provider, journal, wish, clock, report).run(budget_s)
    except Exception as error:
        report.unseen.append(_unseen(provider.name, "", 0, error))
    for item in report.failed:
        _log.warning("could not remove %s %s: %s", item.provider, item.id or item.key, item.reason)
    if report.removed and not wish.dry_run:
        _log.info("removed %d left behind on %s", len(report.removed), provider.name)
    return report


async def gc(
    journal: Journal,
    *,
    settings: Settings | None = None,
    providers: Iterable[str | SandboxProvider] = (),
    wish: Wish | None = None,
    acquire: Callable[[Any, Any], Awaitable[Lease]] | None = None,
    clock: Callable[[], float] = time.time,
) -> ReapReport:
    """Remove what dead owners left on every backend that the journal or the configuration names.

    Args:
        journal: This user's.
        settings: Where options of the backends come from.
        providers: Only these; none for all that the journal or the configuration names.
        wish: What to remove; None for everything that dead owners left.
        acquire: Gives a provider for a name and options; `registry.acquire` by default.
        clock: Unix seconds.

    Returns:
        What was removed, and what could not be looked at and which login would reach it.
    """
    from openenv_sandbox import registry

    wish = wish or Wish()
    rows = await journal.rows()
    chosen: list[str | SandboxProvider] = list(providers)
    if not chosen:
        configured = settings.provider_names() if settings is not None else set()
        chosen = [*sorted({row.provider for row in rows} | configured)]
    total = ReapReport(dry_run=wish.dry_run)
    for which in chosen:
        name = which if isinstance(which, str) else which.name
        waiting = [row for row in rows if row.provider == name and (wish.run is None or row.run == wish.run)]
        try:
            options = settings.options_for(name) if settings is not None and isinstance(which, str) else None
            lease = await (acquire or registry.acquire)(which, options)
        except OpenEnvError as error:
            scopes = sorted({row.scope for row in waiting}) or [""]
            total.unseen += [_unseen(name, s, sum(row.scope == s for row in waiting), error) for s in scopes]
            continue
        try:
            report = await reap(lease.provider, journal, wish=wish, clock=clock)
            total.unseen += _elsewhere(lease.provider, waiting)
        finally:
            await lease.release()
        for part in ("removed", "kept", "failed", "unseen", "looked_at", "images"):
            getattr(total, part).extend(getattr(report, part))
    return total


class _Reaper:
    """One look at one provider and scope."""

    def __init__(
        self, provider: SandboxProvider, journal: Journal, wish: Wish, clock: Callable[[], float], report: ReapReport
    ) -> None:
        self.provider, self.journal, self.wish, self.clock, self.report = provider, journal, wish, clock, report
        self.scope = provider.scope()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self, budget_s: float) -> None:
        rows = await self.journal.rows(provider=self.provider.name, scope=self.scope)
        due = [row for row in rows if self._is_due(row)]
        if self.wish.claim:
            mine = set(await self.journal.claim([row.key for row in due], CLAIM_S))
            self.report.kept += [self._row_item(r, "another process is at it") for r in due if r.key not in mine]
            due = [row for row in due if row.key in mine]
        work: list[_Job] = [(self._row_item(row, ""), partial(self._row, row)) for row in due]
        try:
            try:
                found = await asyncio.wait_for(self._labelled_due(rows), ITEM_S)
                work += [(self._item(info.ref, info), partial(self._labelled, info, why)) for info, why in found]
            except Exception as error:  # the rows are worth trying all the same
                self.report.unseen.append(_unseen(self.provider.name, "", 0, error))
            if self.wish.images:
                await self._images()
            self.report.looked_at.append(f"{self.provider.name} {self.scope}")
            await self._all(work, budget_s)
        finally:
            if self.wish.claim and due:
                await self.journal.unclaim([row.key for row in due])

    def _is_due(self, row: Row) -> bool:
        """Whether nobody wants the row's sandbox any more."""
        now = self.clock()
        if (self.wish.run is not None and row.run != self.wish.run) or self._too_young(row.created_at):
            return False
        if row.state == "pending_delete":
            return not row.alive or row.updated_at < now - STALLED_S
        if row.state == "detached":
            expired = row.expires_at is not None and row.expires_at < now
            if not expired and self.wish.run is None and not self.wish.claim:
                self.report.kept.append(self._row_item(row, "detached; removed when it expires, or by its run"))
            return expired or self.wish.run is not None
        if row.alive and self.wish.run is not None:
            self.report.kept.append(self._row_item(row, "its owner is alive"))
        return not row.alive

    def _too_young(self, created_at: float) -> bool:
        return self.wish.older_than > 0 and created_at > self.clock() - self.wish.older_than

    async def _row(self, row: Row) -> None:
        """Remove every sandbox of one row; close the row when none is left and none can appear."""
        refs: dict[str, SandboxRef] = {row.ref.id: row.ref} if row.ref is not None else {}
        if self.provider.capabilities.findable != "none":
            try:
                for ref in await self.provider.find(row.key):
                    # Asked again here: what a backend's filter let through is not proof enough to delete by.
                    if ref.key == row.key and ref.scope == self.scope:
                        refs[ref.id] = ref
            except Exception:
                if not refs:
                    raise
        for ref in refs.values():
            await self._delete(ref, row.run, f"its owner is gone ({row.state})" if not row.alive else row.state)
        if self.wish.dry_run:
            return
        if not refs and self.provider.capabilities.findable == "none" and self.clock() <= _end_of(row):
            self.report.kept.append(self._row_item(row, f"cannot be looked up; {self._end_said(row)}"))
            return
        if row.ref is None and self.clock() <= row.settle_until:
            left = row.settle_until - self.clock()
            self.report.kept.append(self._row_item(row, f"a create that was lost may still appear for {left:.0f} s"))
            return
        await self.journal.close(row.key)

    def _end_said(self, row: Row) -> str:
        end = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(_end_of(row)))
        if self.provider.capabilities.lifetime == "none":
            return f"this backend ends nothing by itself; forgotten after {end}"
        return f"ends by itself at {end} or before"

    async def _labelled_due(self, rows: list[Row]) -> list[tuple[SandboxInfo, str]]:
        """Sandboxes that carry our labels and have no row: the journal was lost, or they outlived it."""
        capabilities = self.provider.capabilities
        if capabilities.labels == "journal" or (self.wish.claim and capabilities.lifetime != "none"):
            return []  # in the background only backends that never end a sandbox by themselves are worth a listing
        known = {row.key for row in rows}
        due: list[tuple[SandboxInfo, str]] = []
        wanted = {} if self.wish.expired_any else {INSTALL: self.journal.install_id}
        if self.wish.run is not None and not self.wish.expired_any:
            wanted[RUN] = self.wish.run
        async for info in self.provider.list(wanted):
            labels, now = info.labels, self.clock()
            key, run = labels.get(KEY, ""), labels.get(RUN, "")
            ours = labels.get(INSTALL) == self.journal.install_id
            if not key.startswith("oe-") or key in known or info.ref.key not in (None, key):
                continue
            if self.wish.run not in (None, run) or self._too_young(info.created_at or 0.0):
                continue
            expired = _number(labels.get(EXPIRES)) < now
            if ours and await self.journal.owner_alive(run):
                continue
            if ours and (expired or self.wish.run is not None):
                due.append((info, "expired" if expired else "asked for by its run"))
            elif ours:
                self.report.kept.append(self._item(info.ref, info, "not in the journal; removed when it expires"))
            elif self.wish.expired_any and expired and labels.get(INSTALL):
                due.append((info, "expired, of another install"))
        return due

    async def _labelled(self, info: SandboxInfo, why: str) -> None:
        await self._delete(info.ref, info.labels.get(RUN, ""), why)

    async def _delete(self, ref: SandboxRef, run: str, why: str) -> None:
        if not self.wish.dry_run:
            await self.provider.delete(await self.journal.full_ref(ref))
        self.report.removed.append(Item(self.provider.name, self.scope, ref.key or "", ref.id, run, why))

    async def _images(self) -> None:
        try:
            for prepared in await self.provider.list_prepared():
                # A backend that labels shows everybody's; one without labels only its user's.
                mine = not prepared.labels or prepared.labels.get(INSTALL) == self.journal.install_id
                if prepared.owned and mine and not self._too_young(prepared.created_at or 0.0):
                    await self._image(prepared)
        except Exception as error:
            self.report.unseen.append(_unseen(self.provider.name, "", 0, error))

    async def _image(self, prepared: Prepared) -> None:
        try:
            if not self.wish.dry_run:
                await self.provider.drop(prepared)
        except OpenEnvError as error:
            item = Item(self.provider.name, self.scope, "", prepared.ref, "", f"the image is in use: {error.message}")
            self.report.kept.append(item)
        else:
            self.report.images.append(f"{self.provider.name} {prepared.ref}")

    async def _all(self, work: list[_Job], budget_s: float) -> None:
        tasks = {asyncio.get_running_loop().create_task(self._one(job)): item for item, job in work}
        if not tasks:
            return
        try:
            done, late = await asyncio.wait(tasks, timeout=budget_s)
        finally:
            for task in tasks:
                task.cancel()
        for task in late:
            self.report.kept.append(_because(tasks[task], f"not reached within {budget_s:g} s"))
        for task in done:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.report.failed.append(_because(tasks[task], _sentence(error)))

    async def _one(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._turns:
            try:
                await asyncio.wait_for(job(), ITEM_S)
            except asyncio.TimeoutError:
                raise TimeoutError(f"the backend did not answer within {ITEM_S:g} s") from None

    def _row_item(self, row: Row, why: str) -> Item:
        return Item(row.provider, row.scope, row.key, row.ref_id, row.run, why)

    def _item(self, ref: SandboxRef, info: SandboxInfo, why: str = "") -> Item:
        return Item(self.provider.name, self.scope, info.labels.get(KEY, ""), ref.id, info.labels.get(RUN, ""), why)


def _end_of(row: Row) -> float:
    """When a sandbox is over that nobody can find: its lifetime after the last moment at which it may have appeared."""
    late = max(0.0, row.settle_until - row.created_at) if row.ref is None else 0.0
    return (row.expires_at or 0.0) + late


def _elsewhere(provider: SandboxProvider, rows: list[Row]) -> list[Unseen]:
    """Rows of the same backend that this login does not reach: not found there would not mean gone."""
    try:
        here = provider.scope()
    except OpenEnvError:
        return []
    scopes = sorted({row.scope for row in rows if row.scope != here})
    return [
        Unseen(
            provider.name,
            scope,
            sum(row.scope == scope for row in rows),
            f"the present login reaches {here}",
            f"run gc with the options or login of {provider.name} that reach {scope}",
        )
        for scope in scopes
    ]


def _unseen(name: str, scope: str, count: int, error: Exception) -> Unseen:
    return Unseen(name, scope, count, _sentence(error), (getattr(error, "hint", None) or "") if count or scope else "")


def _because(item: Item, reason: str) -> Item:
    return Item(item.provider, item.scope, item.key, item.id, item.run, reason)


def _sentence(error: BaseException) -> str:
    from openenv_sandbox.redact import clean, mask

    text = error.message if isinstance(error, OpenEnvError) else f"{type(error).__name__}: {error}"
    return clean(mask(text))


def _number(text: str | None) -> float:
    """The label's Unix time; endless when it is absent or not ours."""
    try:
        return float(text) if text else float("inf")
    except ValueError:
        return float("inf")
