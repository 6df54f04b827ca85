"""Rubrics made of rubrics."""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import TYPE_CHECKING, Any, NoReturn

from openenv_sandbox.rubrics.base import Rubric, settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView

    from openenv_sandbox.rubrics.base import Score

SUM_TOLERANCE = 1e-6
"""How far weights may be from 1 in total."""


class Sequential(Rubric):
    """Asks its rubrics in order: 0.0 as soon as one gives 0.0, else the score of the last; 1.0 without any.

    Args:
        rubrics: Children named ``rubric_0``, ``rubric_1``, …
    """

    def __init__(self, *rubrics: Rubric) -> None:
        super().__init__()
        for index, rubric in enumerate(rubrics):
            setattr(self, f"rubric_{index}", rubric)

    def forward(self, action: Any, observation: Any) -> Score:
        """Score in order; what follows a zero is not asked."""
        score: Score = 1.0
        waiting = list(self.children())
        while waiting:
            score = waiting.pop(0)(action, observation)
            if inspect.isawaitable(score):
                return self._rest(score, waiting, action, observation)
            if score == 0.0:
                return 0.0
        return score

    async def _rest(self, pending: Awaitable[float], waiting: list[Rubric], action: Any, observation: Any) -> float:
        score = await pending
        for rubric in waiting:
            if score == 0.0:
                break
            score = await settled(rubric(action, observation))
        return 0.0 if score == 0.0 else score


class Gate(Rubric):
    """Lets a score through when it reaches a threshold, and is 0.0 otherwise.

    Args:
        rubric: Gives the score.
        threshold: Smallest score that passes.
    """

    def __init__(self, rubric: Rubric, threshold: float = 1.0) -> None:
        super().__init__()
        self.rubric = rubric
        self.threshold = threshold

    def forward(self, action: Any, observation: Any) -> Score:
        """The child's score, or 0.0."""
        score = self.rubric(action, observation)
        return self._later(score) if inspect.isawaitable(score) else self._gated(score)

    async def _later(self, pending: Awaitable[float]) -> float:
        return self._gated(await pending)

    def _gated(self, score: float) -> float:
        return score if score >= self.threshold else 0.0


class WeightedSum(Rubric):
    """The sum of weighted scores; asynchronous rubrics are asked at the same time.

    Args:
        rubrics: Children named ``rubric_0``, ``rubric_1``, …
        weights: One for each, 1 in total.

    Raises:
        ValueError: Not one weight for each rubric, or they are not 1 in total.
    """

    def __init__(self, rubrics: Sequence[Rubric], weights: Sequence[float]) -> None:
        super().__init__()
        if len(rubrics) != len(weights):
            raise ValueError(f"{len(rubrics)} rubrics and {len(weights)} weights: one weight for each is needed")
        total = math.fsum(weights)
        if not abs(total - 1.0) <= SUM_TOLERANCE:
            raise ValueError(f"weights must be 1 in total, not {total:g}")
        for index, rubric in enumerate(rubrics):
            setattr(self, f"rubric_{index}", rubric)
        self._weights = list(weights)

    @property
    def weights(self) -> list[float]:
        """A copy of the weights."""
        return list(self._weights)

    def forward(self, action: Any, observation: Any) -> Score:
        """The weighted sum."""
        scores = [rubric(action, observation) for rubric in self.children()]
        if any(map(inspect.isawaitable, scores)):
            return self._together(scores)
        return self._sum(scores)

    async def _together(self, scores: list[Any]) -> float:
        return self._sum(await asyncio.gather(*map(settled, scores)))

    def _sum(self, scores: Iterable[Any]) -> float:
        return float(sum(weight * score for weight, score in zip(self._weights, scores, strict=True)))


class RubricList(Rubric):
    """A list of rubrics, which are children named by their index; it has no score of its own."""

    def __init__(self, rubrics: Iterable[Rubric] | None = None) -> None:
        super().__init__()
        self._items: list[Rubric] = []
        self.extend(rubrics or ())

    def append(self, rubric: Rubric) -> None:
        """Add one at the end."""
        setattr(self, str(len(self._items)), rubric)
        self._items.append(rubric)

    def extend(self, rubrics: Iterable[Rubric]) -> None:
        """Add several at the end."""
        for rubric in rubrics:
            self.append(rubric)

    def forward(self, action: Any, observation: Any) -> NoReturn:
        """Refuse: what the scores of a list amount to is for the rubric that holds it to say."""
        raise NotImplementedError(f"{_no_score(self)}: loop over it in the forward() of the rubric that holds it")

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Rubric:
        return self._items[index]

    def __iter__(self) -> Iterator[Rubric]:
        return iter(self._items)


class RubricDict(Rubric):
    """Rubrics by name, which are children of that name; it has no score of its own."""

    def __init__(self, rubrics: Mapping[str, Rubric] | None = None) -> None:
        super().__init__()
        self._items: dict[str, Rubric] = {}
        self.update(rubrics or {})

    def update(self, rubrics: Mapping[str, Rubric]) -> None:
        """Add or replace several."""
        for name, rubric in rubrics.items():
            self[name] = rubric

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._items.keys()

    def values(self) -> ValuesView[Rubric]:
        """The rubrics."""
        return self._items.values()

    def items(self) -> ItemsView[str, Rubric]:
        """Names and rubrics."""
        return self._items.items()

    def forward(self, action: Any, observation: Any) -> NoReturn:
        """Refuse: what the scores amount to is for the rubric that holds it to say."""
        raise NotImplementedError(f"{_no_score(self)}: choose from it in the forward() of the rubric that holds it")

    def __setitem__(self, name: str, rubric: Rubric) -> None:
        # Straight into the children: a name such as "reset" must not hide a method.
        self._rubric_children[name] = rubric
        self._items[name] = rubric

    def __getitem__(self, name: str) -> Rubric:
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)


def _no_score(rubric: Rubric) -> str:
    return f"a {type(rubric).__name__} has no score of its own"
