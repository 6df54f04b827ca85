"""What a look for leftovers was asked for, and what it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Item:
    """One sandbox, or the intention of one, and what was decided about it.

    Attributes:
        provider: Name of the backend.
        scope: What the id belongs to.
        key: Our key; empty when unknown.
        id: The backend's id; None when unknown.
        run: The owner's run; empty when unknown.
        reason: Why it was removed or kept, or what failed.
    """

    provider: str
    scope: str
    key: str
    id: str | None
    run: str
    reason: str


@dataclass(frozen=True)
class Unseen:
    """Something that could not be looked at.

    Attributes:
        provider: Name of the backend.
        scope: Where it is; empty when nothing is known to be there.
        count: Rows that wait there.
        reason: Why it could not be looked at.
        hint: What would reach it.
    """

    provider: str
    scope: str
    count: int
    reason: str
    hint: str = ""


@dataclass
class ReapReport:
    """What was done.

    Attributes:
        removed: Gone; with ``dry_run`` what would go.
        kept: Left alone, and why: a create that may still appear, a living owner, another process at work.
        failed: Tried and not certain; the next run tries again.
        unseen: Backends and scopes that could not be looked at.
        looked_at: ``provider scope`` of those that were.
        images: Prepared images that were (would be) dropped.
        dry_run: Whether nothing was touched.
    """

    removed: list[Item] = field(default_factory=list)
    kept: list[Item] = field(default_factory=list)
    failed: list[Item] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    dry_run: bool = False

    @property
    def clean(self) -> bool:
        """Whether nothing failed and nothing was out of sight."""
        return not self.failed and not any(unseen.count for unseen in self.unseen)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Wish:
    """What `gc` was asked for.

    Attributes:
        dry_run: Touch nothing.
        run: Only this run, detached sandboxes included.
        older_than: Only what was made so many seconds ago.
        expired_any: Also what other installs let expire.
        images: Also prepared images.
        claim: Leave out what another process works on.
    """

    dry_run: bool = False
    run: str | None = None
    older_than: float = 0.0
    expired_any: bool = False
    images: bool = False
    claim: bool = False
