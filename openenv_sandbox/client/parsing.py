"""From actions to payloads and from payloads to typed results, for clients that declare types instead of methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from openenv_sandbox.client.result import StepResult, truncated_flag
from openenv_sandbox.errors import ProtocolError, UsageError
from openenv_sandbox.options import explain
from openenv_sandbox.wire import codec

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIRRORED = ("reward", "done")


class GenericObservation(dict[str, Any]):
    """An observation as it came, with the reward and done of its step as attributes.

    Attributes:
        reward: Reward of the step.
        done: Whether the episode is over.
    """

    def __init__(self, fields: Mapping[str, Any], reward: Any = None, done: bool = False) -> None:
        super().__init__(fields)
        self.reward = fields.get("reward", reward)
        self.done = bool(fields.get("done", done))


def declared_types(cls: type, generic: type) -> tuple[Any, Any, Any]:
    """Action, observation and state type of a client class, from ``generic[A, O, S]`` or its class attributes.

    None stands where nothing was declared.
    """
    found: list[Any] = [None, None, None]
    for one in cls.__mro__:
        for index, name in enumerate(("action_type", "observation_type", "state_type")):
            if found[index] is None and one.__dict__.get(name) is not None:
                found[index] = one.__dict__[name]
        for base in one.__dict__.get("__orig_bases__", ()):
            origin, args = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, generic) and len(args) == 3:
                for index, arg in enumerate(args):
                    if found[index] is None and not isinstance(arg, TypeVar) and arg is not Any:
                        found[index] = arg
    return found[0], found[1], found[2]


def payload_of(action: Any) -> dict[str, Any]:
    """The fields of an action as they travel; an empty ``metadata`` stays at home.

    Raises:
        UsageError: The action has no fields.
    """
    if type(action) is dict:
        return action
    if isinstance(action, Mapping):
        return dict(action)
    try:
        fields = codec.fields_of(action)
    except Exception:
        fields = _loose_fields(action)
    if isinstance(action, BaseModel) and not fields.get("metadata", True):
        del fields["metadata"]
    return fields


def _loose_fields(action: Any) -> dict[str, Any]:
    for attempt in (vars, dict):
        try:
            return dict(attempt(action))
        except (TypeError, ValueError):
            continue
    raise UsageError(
        f"a {type(action).__name__} is no action: it has no fields", hint="pass a dict, a pydantic model or a dataclass"
    )


def result_of(payload: dict[str, Any], observation_type: Any) -> StepResult[Any]:
    """The typed result of an envelope.

    Raises:
        ProtocolError: The observation does not fit the declared type; says which field and why.
    """
    inside = payload.get("observation")
    reward, done = payload.get("reward"), bool(payload.get("done", False))
    observation: Any
    if observation_type in (None, dict, Any, GenericObservation):
        observation = GenericObservation(inside, reward, done) if isinstance(inside, dict) else inside
    else:
        observation = _validated(observation_type, inside, payload, "observation")
    return StepResult(observation, reward, done, payload.get("metadata") or None)


def state_of(payload: dict[str, Any], state_type: Any) -> Any:
    """The typed state.

    Raises:
        ProtocolError: It does not fit the declared type.
    """
    if state_type in (None, dict, Any):
        return payload
    return _validated(state_type, payload, {}, "state")


def finish(result: Any, payload: dict[str, Any]) -> Any:
    """Complete what a client's own ``_parse_result`` made: truncation, and reward and done on the observation too."""
    if not isinstance(result, StepResult):
        return result
    if result.done and not result.truncated and truncated_flag(payload):
        result.truncated = True
        result.terminated = False
    observation = result.observation
    if isinstance(observation, BaseModel):
        # Without validation: a subclass may declare ``reward: float``, and None is what the server said.
        given = observation.__pydantic_fields_set__
        for name in _mirrored_fields(type(observation)):
            if name in _MIRRORED and name not in given:
                observation.__dict__[name] = getattr(result, name)
                given.add(name)
    return result


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@lru_cache(maxsize=256)
def _mirrored_fields(model: type[BaseModel]) -> Sequence[str]:
    return tuple(name for name in (*_MIRRORED, "metadata") if name in model.model_fields)


def _validated(kind: Any, fields: Any, payload: dict[str, Any], what: str) -> Any:
    try:
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return _adapter(kind).validate_python(fields)
        if payload and isinstance(fields, dict):
            fields = dict(fields)
            for name in _mirrored_fields(kind):
                if name not in fields and payload.get(name) is not None:
                    fields[name] = payload[name]
        return kind.model_validate(fields)
    except ValidationError as error:
        name = getattr(kind, "__name__", str(kind))
        raise ProtocolError(
            explain(f"the server's {what} does not fit {name}", error),
            code="CLIENT_VALIDATION",
            hint=f"is the client's {name} older or newer than the server's?",
        ) from error
