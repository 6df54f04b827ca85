"""What an environment author subclasses."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from openenv_sandbox.models import Action, Observation, State

ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT", bound=Observation)
StateT = TypeVar("StateT", bound=State)


class EnvironmentMetadata(BaseModel):
    """What ``/metadata`` says about an environment.

    Attributes:
        name: Its name.
        description: One sentence.
        readme_content: Markdown, shown on its page.
        version: Its own version.
        author: Who made it.
        documentation_url: Where to read more.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    name: str = Field(description="Name of the environment")
    description: str = Field(description="What the environment does")
    readme_content: str | None = Field(default=None, description="Markdown of its README")
    version: str | None = Field(default=None, description="Version of the environment")
    author: str | None = Field(default=None, description="Who made it")
    documentation_url: str | None = Field(default=None, description="Where to read more")


class Transform(ABC, Generic[ObsT]):
    """Changes observations before they leave, for example to add a reward."""

    @abstractmethod
    def __call__(self, observation: ObsT) -> ObsT:
        """Return the observation to send; it may be the same object, changed."""


class CompositeTransform(Transform[ObsT]):
    """Applies several transforms in order.

    Args:
        transforms: The first one sees the observation first.
    """

    def __init__(self, transforms: list[Transform[ObsT]]) -> None:
        self.transforms = transforms

    def __call__(self, observation: ObsT) -> ObsT:
        """Apply all of them."""
        for transform in self.transforms:
            observation = transform(observation)
        return observation


class NullTransform(Transform[ObsT]):
    """Changes nothing."""

    def __call__(self, observation: ObsT) -> ObsT:
        """Return the observation as it is."""
        return observation


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """One episode at a time: `reset` starts it, `step` moves it, `state` tells where it is.

    Synchronous methods run in one thread from construction to `close`. Override `reset_async` and `step_async` (or
    write ``async def reset``) to run on the event loop instead.

    Subclasses need not call this constructor: everything it sets has a value on the class.

    Attributes:
        SUPPORTS_CONCURRENT_SESSIONS: Several instances may live in one process.
        REQUIRES_SINGLE_THREAD_EXECUTOR: All instances must share one thread.
        BLOCKING: Set to False when no method ever blocks: then all run on the event loop, without a thread.
        transform: Applied to observations by `_apply_transform`.
        rubric: Gives the reward in `_apply_rubric`.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    REQUIRES_SINGLE_THREAD_EXECUTOR: ClassVar[bool] = False
    BLOCKING: ClassVar[bool] = True

    transform: Transform[ObsT] | None = None
    rubric: Any = None

    def __init__(self, transform: Transform[ObsT] | None = None, rubric: Any = None) -> None:
        self.transform = transform
        self.rubric = rubric

    if TYPE_CHECKING:
        # Environments override these with the parameters that they take, often fewer: that is no error to a checker.
        @abstractmethod
        def reset(self, *args: Any, **kwargs: Any) -> ObsT: ...  # noqa: D102

        @abstractmethod
        def step(self, action: ActT, *args: Any, **kwargs: Any) -> ObsT: ...  # noqa: D102

        async def reset_async(self, *args: Any, **kwargs: Any) -> ObsT: ...  # noqa: D102

        async def step_async(self, action: ActT, *args: Any, **kwargs: Any) -> ObsT: ...  # noqa: D102

    else:

        @abstractmethod
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
            """Start an episode.

            A subclass may take fewer parameters; the server passes those that the signature names.

            Args:
                seed: Makes the episode repeatable, where the environment can.
                episode_id: Name of the episode.
                **kwargs: What the environment defines.
            """

        @abstractmethod
        def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
            """Take one action.

            Args:
                action: What to do.
                timeout_s: Seconds the caller is ready to wait.
                **kwargs: What the environment defines.
            """

        async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
            """Asynchronous `reset`; the server calls it only where it is overridden."""
            return self.reset(seed=seed, episode_id=episode_id, **kwargs)

        async def step_async(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
            """Asynchronous `step`; the server calls it only where it is overridden."""
            return self.step(action, timeout_s=timeout_s, **kwargs)

    @property
    @abstractmethod
    def state(self) -> StateT:
        """Where the episode is."""

    def get_metadata(self) -> EnvironmentMetadata:
        """What ``/metadata`` answers."""
        name = type(self).__name__
        return EnvironmentMetadata(name=name, description=f"{name} environment", version="1.0.0")

    def close(self) -> None:
        """Release what the environment holds; runs once, in the environment's thread."""

    def render_web(self, observation: dict[str, Any]) -> str | None:
        """HTML for the web page; None shows the observation as JSON."""
        return None

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Buttons for the web page: (label, action)."""
        return []

    def _apply_transform(self, observation: ObsT) -> ObsT:
        return observation if self.transform is None else self.transform(observation)

    def _apply_rubric(self, action: ActT, observation: ObsT) -> float:
        """Score of the rubric, 0.0 without one; a coroutine of it where the rubric is asynchronous."""
        return 0.0 if self.rubric is None else cast("float", self.rubric(action, observation))

    async def _apply_rubric_async(self, action: ActT, observation: ObsT) -> float:
        score: Any = self._apply_rubric(action, observation)
        return cast("float", await score) if inspect.isawaitable(score) else cast("float", score)

    def _reset_rubric(self) -> None:
        if self.rubric is not None:
            self.rubric.reset()

    async def _reset_rubric_async(self) -> None:
        if self.rubric is None:
            return
        reset = getattr(self.rubric, "reset_async", None) or self.rubric.reset
        waiting: Any = reset()
        if inspect.isawaitable(waiting):
            await waiting
