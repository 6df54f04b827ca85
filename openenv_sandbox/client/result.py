"""What a reset or step returns, and how its handle looks to a type checker."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

ObsT = TypeVar("ObsT")
ValueT = TypeVar("ValueT")

_TRUNCATED_KEYS = ("truncated", "TimeLimit.truncated")


@dataclass
class StepResult(Generic[ObsT]):
    """Outcome of one reset or step.

    Attributes:
        observation: What the environment shows.
        reward: Reward of the step; None when there is none.
        done: Whether the episode is over, for whatever reason.
        metadata: Anything beside the observation; None when there is nothing.
        terminated: The episode reached its own end; None means ``done and not truncated``.
        truncated: The episode was cut (time limit, budget); a value function bootstraps over it.
        info: Accepted from older clients as a further mapping of metadata.
    """

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    terminated: bool | None = None
    truncated: bool = False
    info: InitVar[dict[str, Any] | None] = None

    def __post_init__(self, info: dict[str, Any] | None) -> None:
        if isinstance(info, dict) and info:
            self.metadata = {**info, **(self.metadata or {})}
        if self.terminated is None:
            self.terminated = bool(self.done) and not self.truncated

    def _repr_html_(self) -> str:
        from openenv_sandbox import notebook

        return notebook.result(self)


# A default of an InitVar stays on the class, where it would look like an attribute of every result.
delattr(StepResult, "info")


def truncated_flag(payload: dict[str, Any]) -> bool:
    """Whether an envelope says that the episode was cut: beside ``done``, in the observation or in its metadata."""
    observation = payload.get("observation")
    inside = observation if isinstance(observation, dict) else {}
    for place in (payload, inside, payload.get("metadata"), inside.get("metadata")):
        if isinstance(place, dict):
            for key in _TRUNCATED_KEYS:
                if isinstance(place.get(key), bool):
                    return bool(place[key])
    return False


if TYPE_CHECKING:

    class StepReply(StepResult[ObsT]):
        """Seen by type checkers: a result at once, or after ``await``."""

        def __await__(self) -> Generator[Any, Any, StepResult[ObsT]]: ...

    class Reply(Generic[ValueT]):
        """Seen by type checkers: a value at once, or after ``await``."""

        def __await__(self) -> Generator[Any, Any, ValueT]: ...
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...
