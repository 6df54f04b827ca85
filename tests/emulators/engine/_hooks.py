"""Fault rules, applied to the calls of a vendor's API."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, Literal

from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.testing.faults import FakeApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.testing.faults import Faults, Rule

drop: contextvars.ContextVar[Callable[[], None] | None] = contextvars.ContextVar("drop", default=None)
"""Cuts the connection of the request being served. `Front` sets it; a face with a server of its own does too."""

_current: contextvars.ContextVar[Mapping[str, Hooked] | None] = contextvars.ContextVar("current", default=None)


class Hooked:
    """What the fault rules say of one call.

    Attributes:
        rules: Those that apply.
        late: Seconds for which look-ups do not show what is created (`Engine.create` heeds it by itself).
        half: A listing breaks off after so many.
        die: How the server that is created ends by itself (`Engine.create` heeds it).
    """

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules
        self.late = max((rule.late for rule in rules), default=0.0)
        self.half = next((rule.half for rule in rules if rule.half is not None), None)
        self.die: Mapping[str, Any] | None = next((rule.die for rule in rules if rule.die is not None), None)


def current(op: str) -> Hooked | None:
    """What `apply` found for the call that this task is serving."""
    return (_current.get() or {}).get(op)


async def apply(faults: Faults, op: str, when: Literal["before", "after"], args: Mapping[str, Any]) -> Hooked:
    """See `Engine.hook`."""
    known = dict(_current.get() or {})
    if when == "before":
        known[op] = hooked = Hooked(faults.take(op, args))
    else:
        hooked = known.pop(op) if op in known else Hooked([])
    _current.set(known)
    for rule in hooked.rules:
        if rule.when == when:
            try:
                await daemon_call(rule.apply)
            except FakeApiError as error:
                if error.status == 0:
                    cut()
                raise
    return hooked


def cut() -> None:
    """Cut the connection of the request being served, without an answer."""
    if (call := drop.get()) is not None:
        call()
