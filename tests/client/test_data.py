"""What travels arrives: every field, None or missing, reward and done in both places, truncation apart from the end."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, Field

from openenv_sandbox.client import EnvClient, GenericEnvClient, StepResult
from openenv_sandbox.client.parsing import finish, payload_of, result_of, state_of
from openenv_sandbox.errors import ProtocolError, SerializationError, UsageError
from openenv_sandbox.models import Action, CallToolAction, Observation, State
from openenv_sandbox.wire import codec, messages

if TYPE_CHECKING:
    from .harness import EnvServer

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


class Rich(Observation):
    text: str = "default"
    maybe: int | None = 5
    nested: dict[str, Any] = Field(default_factory=dict)


class Open(Rich):
    model_config = ConfigDict(extra="allow")


class Strict(Observation):
    reward: float = 0.0


class RichClient(EnvClient[Action, Rich, State]):
    pass


def over_the_wire(observation: Observation) -> dict[str, Any]:
    data: dict[str, Any] = codec.loads(codec.dumps(messages.envelope(codec.fields_of(observation))))
    return data


@settings(deadline=None)
@given(
    text=st.text(),
    maybe=st.none() | st.integers(-(2**53), 2**53),
    nested=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    metadata=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    extra=st.dictionaries(st.sampled_from(["more", "other"]), JSON, max_size=2),
    reward=st.none() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False),
    done=st.booleans(),
)
def test_every_field_survives(
    text: str, maybe: int | None, nested: Any, metadata: Any, extra: Any, reward: Any, done: bool
) -> None:
    """Declared fields, None beside missing, metadata and unknown extras come back equal.

    Scenario: K01
    Mutation: result_of leaves metadata out, or drops fields that are None
    """
    sent = Open(text=text, maybe=maybe, nested=nested, metadata=metadata, reward=reward, done=done, **extra)
    result = result_of(over_the_wire(sent), Open)
    assert result.observation == sent
    assert (result.reward, result.done, result.metadata or {}) == (reward, done, metadata)
    generic = result_of(over_the_wire(sent), None).observation
    assert generic == sent.model_dump(exclude={"reward", "done"})


def test_a_field_nobody_declared_is_an_error_that_names_it() -> None:
    with pytest.raises(ProtocolError, match=r"does not fit Rich: surprise: Extra inputs") as caught:
        result_of({"observation": {"surprise": "canary-value"}, "reward": None, "done": False}, Rich)
    assert "canary-value" not in str(caught.value)
    with pytest.raises(ProtocolError, match=r"state does not fit State: step_count"):
        state_of({"step_count": -1}, State)


@pytest.mark.parametrize("client_type", [RichClient, GenericEnvClient])
def test_reward_and_done_in_both_places(server: EnvServer, client_type: Any) -> None:
    """The observation says the same reward and done as the result.

    Scenario: K02
    Mutation: finish() does not mirror, or GenericObservation ignores reward and done
    """
    with client_type(server.url).sync() as client:
        assert client.reset().observation.reward == 0.0
        result = client.step({"done": True, "text": "end"})
        assert (result.reward, result.done) == (1.0, True)
        assert (result.observation.reward, result.observation.done) == (1.0, True)
    if client_type is GenericEnvClient:
        assert set(result.observation) == {"metadata", "text"}, "no keys are added to what the server sent"


def test_mirrored_without_validation_into_what_three_method_clients_build() -> None:
    """``reward: float`` in the model and None from the server do not clash.

    Scenario: K02
    Mutation: finish() assigns with validation
    """
    result = finish(StepResult(Strict(), None, True), {"observation": {}, "reward": None, "done": True})
    assert result.observation.reward is None
    assert result.observation.done is True
    own = finish(StepResult(Rich(reward=3.0), 1.0, False), {})
    assert own.observation.reward == 3.0, "what a subclass set itself is left alone"
    assert result_of({"observation": {}, "reward": None, "done": False}, Strict).observation.reward == 0.0


@pytest.mark.parametrize(
    ("payload", "flags"),
    [
        ({"observation": {}, "done": False}, (False, False)),
        ({"observation": {}, "done": True}, (True, False)),
        ({"observation": {}, "done": True, "truncated": True}, (False, True)),
        ({"observation": {"metadata": {"truncated": True}}, "done": True}, (False, True)),
        ({"observation": {"metadata": {"TimeLimit.truncated": True}}, "done": True}, (False, True)),
        ({"observation": {"metadata": {}}, "done": True, "metadata": {"truncated": False}}, (True, False)),
    ],
)
def test_terminated_is_not_truncated(payload: dict[str, Any], flags: tuple[bool, bool]) -> None:
    """A time limit and a reached goal can be told apart, also by clients that build the result themselves.

    Scenario: K08
    Mutation: finish() ignores truncated_flag
    """
    payload = {"reward": 0.5, **payload}
    for result in (
        finish(result_of(payload, None), payload),
        finish(StepResult(payload["observation"], payload["reward"], payload["done"]), payload),
    ):
        assert (result.terminated, result.truncated) == flags
        assert result.done == payload["done"]


def test_step_result_is_what_old_code_expects() -> None:
    result = StepResult("o", 1.0, True, {"a": 1})
    assert (result.observation, result.reward, result.done, result.metadata) == ("o", 1.0, True, {"a": 1})
    assert StepResult("o", info=None) == StepResult("o")
    assert StepResult("o", info={"b": 2}).metadata == {"b": 2}
    assert not hasattr(result, "info")
    assert StepResult[Rich](Rich()).terminated is False


def test_payloads() -> None:
    @dataclass
    class Data:
        x: int

    class Plain:
        def __init__(self) -> None:
            self.x = 1

    assert payload_of(CallToolAction(tool_name="t", arguments={"a": 1})) == {
        "type": "call_tool",
        "tool_name": "t",
        "arguments": {"a": 1},
    }
    assert payload_of(Action(metadata={"k": 1})) == {"metadata": {"k": 1}}
    assert payload_of(Data(1)) == payload_of(Plain()) == payload_of({"x": 1}) == {"x": 1}
    with pytest.raises(UsageError, match="is no action"):
        payload_of(5)


def test_actions_travel_with_arrays_and_say_which_field_cannot(server: EnvServer) -> None:
    import numpy

    with GenericEnvClient(server.url).sync() as client:
        client.reset()
        got = client.step({"array": numpy.arange(3), "nan": math.nan}).observation
        assert (got["array"], got["nan"]) == ([0, 1, 2], None)
        with pytest.raises(SerializationError, match=r"data\.bad\.inner"):
            client.step({"bad": {"inner": object()}})
        assert client.state()["step_count"] == 1, "nothing was sent"
    assert json.dumps(got)
