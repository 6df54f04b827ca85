"""What a trainer gets of a session whose harness asks the model by itself, through a proxy that keeps the tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from openenv_sandbox.harness.types import TraceEntry

# Sampling that changes which distribution the log-probabilities belong to; only these values leave it as it is.
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1.0,),
}


@dataclass
class TrainingTurn:
    """One request to the model with its tokens.

    Attributes:
        node_id: Names the turn.
        prompt_token_ids: Tokens of the prompt.
        completion_token_ids: Tokens of the answer.
        per_token_logps: Their log-probabilities.
        loss_mask: 1 for tokens to train on.
        request: The request.
        response: The answer.
        metadata: Anything beside.
    """

    node_id: str
    prompt_token_ids: list[int] = field(default_factory=list)
    completion_token_ids: list[int] = field(default_factory=list)
    per_token_logps: list[float] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    request: dict[str, Any] = field(default_factory=dict)
    response: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.completion_token_ids)
        for name in ("per_token_logps", "loss_mask"):
            have = len(getattr(self, name))
            if have and have != count:
                raise ValueError(f"turn {self.node_id}: {count} completion tokens and {have} of {name}")


_SHARED = ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask", "request", "response")


@dataclass
class TrainingTrace:
    """The turns of an episode, in order."""

    schema_version: int = 1
    turns: list[TrainingTurn] = field(default_factory=list)

    @classmethod
    def from_entries(cls, entries: Iterable[TraceEntry]) -> TrainingTrace:
        """The trace of what a proxy kept.

        Raises:
            ValueError: Log-probabilities or mask of an entry do not fit its tokens.
        """
        turns = []
        for index, entry in enumerate(entries):
            metadata = dict(entry.get("metadata") or {})
            node = str(metadata.pop("node_id", index))
            fields: dict[str, Any] = {name: entry[name] for name in _SHARED if entry.get(name)}  # type: ignore[literal-required]
            turns.append(TrainingTurn(node_id=node, metadata=metadata, **fields))
        return cls(turns=turns)

    def to_trace_entries(self) -> list[TraceEntry]:
        """The same as entries of a proxy; their metadata holds the ``node_id``."""
        entries: list[TraceEntry] = []
        for turn in self.turns:
            entry: Any = {name: getattr(turn, name) for name in _SHARED}
            entry["metadata"] = {**turn.metadata, "node_id": turn.node_id}
            entries.append(entry)
        return entries


@runtime_checkable
class LoopOwningSession(Protocol):
    """A session whose harness asks the model by itself."""

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the harness to end; returns its exit code."""
        ...

    def fetch_proxy_trace(self) -> list[TraceEntry]:
        """What the proxy kept."""
        ...


@runtime_checkable
class TrainableSession(Protocol):
    """A session whose tokens can be trained on."""

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the harness to end; returns its exit code."""
        ...

    def fetch_training_trace(self) -> TrainingTrace:
        """The turns with their tokens."""
        ...


def training_sampling(sampling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check that a sampling leaves the log-probabilities those of the model.

    Args:
        sampling: Fields of the request; None for none.

    Returns:
        The same fields.

    Raises:
        ValueError: ``temperature`` is missing or not a positive number, or a field is unknown or not neutral.
    """
    if sampling is None:
        return {}
    checked = dict(sampling)
    temperature: Any = checked.get("temperature")
    if not _number(temperature) or not math.isfinite(temperature) or temperature <= 0:
        raise ValueError(f"temperature must be a positive number, not {temperature!r}")
    for name, value in checked.items():
        if name == "temperature":
            continue
        if name not in _NEUTRAL:
            raise ValueError(f"{name} cannot be used for training")
        if not _number(value) or value not in _NEUTRAL[name]:
            allowed = " or ".join(f"{neutral:g}" for neutral in _NEUTRAL[name])
            raise ValueError(f"{name} must be {allowed} for training, not {value!r}")
    return checked


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
