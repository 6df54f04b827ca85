"""JSON of everything an environment may return."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PlainSerializer, RootModel, SecretStr, computed_field, field_serializer

from openenv_sandbox.errors import SerializationError
from openenv_sandbox.models import Observation, State
from openenv_sandbox.wire import messages
from openenv_sandbox.wire.codec import dumps, fields_of, loads

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Colour(Enum):
    RED = "red"


class Level(int, Enum):
    LOW = 1


@dataclass
class Box:
    size: int
    inside: Any = None
    tags: list[str] = field(default_factory=list)


class Base(BaseModel):
    a: int = 1


class Sub(Base):
    b: str = "kept"


class Own(BaseModel):
    when: datetime

    @field_serializer("when")
    def _when(self, value: datetime) -> int:
        return value.year

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.when.year * 2


class Foreign(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    array: Any
    shout: Annotated[str, PlainSerializer(str.upper)]


Point = namedtuple("Point", "x y")


def back(value: Any) -> Any:
    return json.loads(dumps(value))


@settings(deadline=None)
@given(json_values)
def test_json_values_survive(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert json.loads(dumps(value)) == value


def test_integers_beyond_64_bits_are_read_as_floats() -> None:
    """They are written exactly; reading keeps 53 bits of them, as most JSON parsers do."""
    for value in (-(2**63) - 1, 2**64):
        assert json.loads(dumps(value)) == value
        assert loads(dumps(value)) == float(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        ([float("inf"), -float("inf"), 1.5], [None, None, 1.5]),
        (np.float32(1.5), 1.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]], dtype=np.uint8), [[1, 2], [3, 4]]),
        (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.array([1.0, np.nan]), [1.0, None]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (np.float16(0.5), 0.5),
        (b"\x00\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        ((1, "x"), [1, "x"]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        ({1: "a", None: "b", False: "c", Colour.RED: "d"}, {"1": "a", "null": "b", "false": "c", "red": "d"}),
        ({3}, [3]),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Decimal("1.10"), "1.10"),
        (Path("/x/y"), "/x/y"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 2, 3, tzinfo=timezone.utc), "2026-01-02T03:00:00+00:00"),
        (timedelta(minutes=1), "PT1M"),
        (2**80, 2**80),
        ({"deep": [2**80, np.array([1])]}, {"deep": [2**80, [1]]}),
        ("\ud800", "\ud800"),
        (SecretStr("hidden"), "**********"),
        (Box(1, Sub(), ["t"]), {"size": 1, "inside": {"a": 1, "b": "kept"}, "tags": ["t"]}),
        ({"m": Own(when=datetime(2026, 1, 1))}, {"m": {"when": 2026, "double": 4052}}),
        (RootModel[list[int]]([1, 2]), [1, 2]),
        ([2**80, RootModel[list[int]]([1])], [2**80, [1]]),
        (Foreign(array=np.array([1]), shout="hi"), {"array": [1], "shout": "HI"}),
    ],
    ids=str,
)
def test_values_have_one_wire_form(value: Any, expected: Any) -> None:
    assert back(value) == expected


def test_models_go_by_their_own_class_and_keep_extras() -> None:
    class Outer(Observation):
        part: Base
        alias: int = Field(2, alias="other")
        hidden: int = Field(3, exclude=True)

    class Holder(State):
        item: Base

    assert back(Holder(item=Sub(), episode_id="e", more={"x": 1})) == {
        "episode_id": "e",
        "step_count": 0,
        "item": {"a": 1, "b": "kept"},
        "more": {"x": 1},
    }
    assert back(Outer(part=Base()))["alias"] == 2
    assert "hidden" not in back(Outer(part=Base()))


def test_envelope_takes_reward_and_done_out() -> None:
    fields = fields_of(Observation(reward=1, done=True, metadata={"k": 1}))
    assert messages.envelope(fields) == {
        "observation": {"metadata": {"k": 1}},
        "reward": 1,
        "done": True,
        "metadata": {"k": 1},
    }
    assert "metadata" not in messages.envelope(fields_of(Observation()))


@pytest.mark.parametrize(
    ("value", "field_name"),
    [
        ({"a": [1, {"b": object()}]}, "a[1].b"),
        (Box(1, {"f": lambda: None}), "inside.f"),
        ({"z": 1j}, "z"),
        ({"n": np.array([1j])}, "n[0]"),
        ({"k": {(1, 2): 3}}, "k"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, field_name: str) -> None:
    with pytest.raises(SerializationError) as caught:
        dumps(value)
    assert f"'{field_name}'" in str(caught.value)


def test_a_value_that_contains_itself_is_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(SerializationError, match="contains itself"):
        dumps(loop)


def test_loads_takes_what_existing_peers_send() -> None:
    assert loads(b'{"a": NaN}')["a"] != 0
    assert loads(b'"\\ud800"') == "\ud800"
    with pytest.raises(ValueError, match=r"Expecting value: line 1 column 1 \(char 0\)"):
        loads(b"not json")
    with pytest.raises(ValueError, match="decode"):
        loads(b"\xff\xfe")
    with pytest.raises(ValueError, match="nested too deeply"):
        loads(b"[" * 100_000)


def test_fields_of_refuses_what_has_none() -> None:
    with pytest.raises(SerializationError, match="A int is no model"):
        fields_of(3)
