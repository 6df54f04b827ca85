"""`Rubric`: a function of action and observation that knows its parts."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    Score = float | Awaitable[float]
    ForwardHook = Callable[["Rubric", Any, Any, float], Any]
    PreHook = Callable[["Rubric", Any, Any], Any]


class Rubric(ABC):
    """Scores one step. Rubrics assigned to attributes become its children, in order.

    A subclass implements ``forward``, as a plain or a coroutine function. Calling the rubric runs the hooks around it;
    the call returns a coroutine where ``forward`` or a hook is asynchronous. It never changes the observation.

    Attributes:
        last_score: What the last call gave; None before the first.
    """

    _rubric_children: dict[str, Rubric]
    _forward_hooks: list[ForwardHook]
    _forward_pre_hooks: list[PreHook]
    last_score: float | None

    def __init__(self) -> None:
        vars(self).update(_rubric_children={}, _forward_hooks=[], _forward_pre_hooks=[], last_score=None)

    def __setattr__(self, name: str, value: Any) -> None:
        children = vars(self).get("_rubric_children")
        if isinstance(value, Rubric):
            if children is None:
                raise AttributeError(f"{type(self).__name__}: call super().__init__() before assigning {name!r}")
            children[name] = value
        elif children is not None:
            children.pop(name, None)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        vars(self).get("_rubric_children", {}).pop(name, None)
        super().__delattr__(name)

    @abstractmethod
    def forward(self, action: Any, observation: Any) -> Score:
        """The score of one step.

        Args:
            action: What was done.
            observation: What the environment showed after it.
        """

    def __call__(self, action: Any, observation: Any) -> Score:
        """Score a step with the hooks around; a coroutine where anything of it is asynchronous."""
        hooks = (*self._forward_pre_hooks, *self._forward_hooks)
        if inspect.iscoroutinefunction(self.forward) or any(map(_is_async, hooks)):
            return self._call_async(action, observation)
        for before in self._forward_pre_hooks:
            before(self, action, observation)
        score = self.forward(action, observation)
        if inspect.isawaitable(score):
            return self._finish(score, action, observation)
        self.last_score = score
        for after in self._forward_hooks:
            after(self, action, observation, score)
        return score

    async def _call_async(self, action: Any, observation: Any) -> float:
        for before in tuple(self._forward_pre_hooks):
            await settled(before(self, action, observation))
        return await self._finish(self.forward(action, observation), action, observation)

    async def _finish(self, pending: Score, action: Any, observation: Any) -> float:
        score: float = await settled(pending)
        self.last_score = score
        for after in tuple(self._forward_hooks):
            await settled(after(self, action, observation, score))
        return score

    def register_forward_hook(self, hook: ForwardHook) -> None:
        """Call ``hook(rubric, action, observation, score)`` after every score."""
        self._forward_hooks.append(hook)

    def register_forward_pre_hook(self, hook: PreHook) -> None:
        """Call ``hook(rubric, action, observation)`` before every score."""
        self._forward_pre_hooks.append(hook)

    def children(self) -> Iterator[Rubric]:
        """The rubrics directly below."""
        yield from self._rubric_children.values()

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        """The rubrics directly below, with their names."""
        yield from self._rubric_children.items()

    def rubrics(self) -> Iterator[Rubric]:
        """All rubrics below, without this one."""
        for _, rubric in self.named_rubrics():
            yield rubric

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, Rubric]]:
        """All rubrics below with their dotted paths.

        Args:
            prefix: Put before every path.
        """
        for name, child in self._rubric_children.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)

    def get_rubric(self, path: str) -> Rubric:
        """The rubric at a dotted path.

        Raises:
            KeyError: There is none; the message names what is there.
        """
        here = self
        for name in path.split("."):
            found = here._rubric_children.get(name)
            if found is None:
                there = ", ".join(here._rubric_children) or "nothing"
                raise KeyError(f"no rubric {name!r} on the way to {path!r}; there is {there}")
            here = found
        return here

    def reset(self) -> None:
        """Forget the episode. Does nothing here and is not passed on to children."""

    def state_dict(self) -> dict[str, Any]:
        """What must be kept to continue elsewhere: here, that of the children which have any."""
        states = {name: child.state_dict() for name, child in self._rubric_children.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; names that are not there are left alone."""
        for name, child in self._rubric_children.items():
            if name in state:
                child.load_state_dict(state[name])


async def settled(value: Any) -> Any:
    """The value, awaited where it is to be."""
    return await value if inspect.isawaitable(value) else value


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
