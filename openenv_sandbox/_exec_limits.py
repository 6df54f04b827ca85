"""What `RunningSandbox.exec` uses where a call does not say."""

from __future__ import annotations

import contextlib
import contextvars
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class Unset:
    """Not said; None is a value of its own."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


@dataclass(frozen=True)
class Limits:
    """Of every command of a task, where the command has none of its own."""

    timeout: float | Unset | None = UNSET
    max_output: int | None = None


_NONE = Limits()
current: contextvars.ContextVar[Limits] = contextvars.ContextVar("openenv_exec_limits", default=_NONE)


@contextlib.contextmanager
def exec_limits(*, timeout: float | Unset | None = UNSET, max_output: int | None = None) -> Iterator[None]:
    """Set what `RunningSandbox.exec` uses where a call does not say, for this task and what it starts.

    Args:
        timeout: Seconds; None waits for ever.
        max_output: Bytes kept of each stream.
    """
    now = current.get()
    token = current.set(
        Limits(
            now.timeout if isinstance(timeout, Unset) else timeout,
            now.max_output if max_output is None else max_output,
        )
    )
    try:
        yield
    finally:
        current.reset(token)
