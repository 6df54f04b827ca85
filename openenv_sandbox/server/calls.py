"""How the methods of one environment object are to be called."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any

from openenv_sandbox.server.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("openenv.server")


def environment_class(factory: Callable[[], Any]) -> type | None:
    """The class a factory is or wraps by `functools.partial`; None for any other callable."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory if isinstance(factory, type) else None


def factory_name(factory: Callable[[], Any]) -> str:
    """What to call a factory in messages and routes."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__name__", None) or type(factory).__name__


def accepted(function: Callable[..., Any]) -> frozenset[str] | None:
    """Names that may be passed by keyword; None when any may."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in kinds)


def _overridden(env: Any, name: str) -> Callable[..., Any] | None:
    own = getattr(env, name, None)
    if own is None or getattr(own, "__func__", own) is getattr(Environment, name):
        return None
    return own  # type: ignore[no-any-return]


class Method:
    """One method of an environment: what to call, where, and with which keywords.

    Attributes:
        asynchronous: It returns a coroutine and belongs on the event loop.
        inline: It may be called on the event loop.
    """

    __slots__ = ("_accepted", "_function", "_label", "asynchronous", "inline")

    def __init__(self, env: Any, name: str, *, blocking: bool, skip: int) -> None:
        function = _overridden(env, f"{name}_async")
        if function is None:
            function = getattr(env, name)
            self.asynchronous = inspect.iscoroutinefunction(function)
        else:
            self.asynchronous = True
        self.inline = self.asynchronous or not blocking
        self._function = function
        self._label = f"{type(env).__name__}.{name}"
        names = accepted(function)
        if names is not None and skip:
            # The action goes by position, so its parameter must not be offered as a keyword as well.
            names -= set(list(inspect.signature(function).parameters)[:skip])
        self._accepted = names

    def __call__(self, *args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call it with those keywords that its signature names."""
        if not kwargs:
            return self._function(*args)
        names = self._accepted
        if names is None:
            return self._function(*args, **kwargs)
        ignored = frozenset(kwargs) - names
        if ignored:
            _tell_ignored(self._label, ignored)
        return self._function(*args, **{key: value for key, value in kwargs.items() if key in names})


@functools.lru_cache(maxsize=256)
def _tell_ignored(label: str, ignored: frozenset[str]) -> None:
    """Say once that arguments have no effect: a seed that is dropped in silence ruins a group of rollouts."""
    logger.warning("%s does not take %s: ignored", label, ", ".join(sorted(ignored)))


class Calls:
    """The methods of one environment object, looked up once.

    Attributes:
        threaded: Everything runs in the session's thread.
    """

    __slots__ = ("blocking", "env", "reset", "step", "threaded")

    def __init__(self, env: Any) -> None:
        self.env = env
        self.blocking = bool(getattr(env, "BLOCKING", True))
        self.reset = Method(env, "reset", blocking=self.blocking, skip=0)
        self.step = Method(env, "step", blocking=self.blocking, skip=1)
        self.threaded = not self.reset.inline and not self.step.inline

    @property
    def state_inline(self) -> bool:
        """Whether the state is read on the event loop, as it is where steps run there."""
        return self.step.inline

    def state(self) -> Any:
        """The state, which some environments write as a method instead of a property."""
        state = self.env.state
        return state() if inspect.ismethod(state) else state

    def close(self) -> Any:
        """Close the environment; a coroutine where its `close` is one."""
        close = getattr(self.env, "close", None)
        return close() if close is not None else None
