"""The base class as authors use it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from openenv_sandbox import server
from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server import CompositeTransform, Environment, NullTransform, Transform, create_app
from openenv_sandbox.server.calls import Calls, accepted, environment_class, factory_name
from openenv_sandbox.server.dispatch import Dispatcher
from openenv_sandbox.wire import codec
from tests.server.environments import Asynchronous, Do, Inline, Recording, Saw
from tests.server.peers import in_process

pytestmark = pytest.mark.anyio


class Double(Transform[Observation]):
    def __call__(self, observation: Observation) -> Observation:
        observation.reward = (observation.reward or 1) * 2
        return observation


class Rubric:
    resets = 0

    def __call__(self, action: Any, observation: Any) -> float:
        return 0.5

    def reset(self) -> None:
        self.resets += 1


class AsyncRubric(Rubric):
    async def __call__(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        return 0.25

    async def reset_async(self) -> None:
        self.resets += 10


class Bare(Environment[Action, Observation, State]):
    """Never calls the constructor of the base, and resets inside its own."""

    def __init__(self) -> None:
        self.first = self.reset()

    def reset(self) -> Observation:
        self._reset_rubric()
        return self._apply_transform(Observation(reward=self._apply_rubric(Action(), Observation())))

    def step(self, action: Action) -> Observation:
        return self._apply_transform(Observation(reward=1))

    @property
    def state(self) -> State:
        return State()


async def test_hooks_work_without_the_base_constructor() -> None:
    env = Bare()
    assert env.first.reward == 0.0
    env.transform = CompositeTransform([Double(), NullTransform(), Double()])
    assert env.step(Action()).reward == 4
    env.rubric = Rubric()
    assert env.reset().reward == 2.0
    assert env.rubric.resets == 1
    await env._reset_rubric_async()
    assert env.rubric.resets == 2
    env.rubric = AsyncRubric()
    assert await env._apply_rubric_async(Action(), Observation()) == 0.25
    await env._reset_rubric_async()
    assert env.rubric.resets == 10
    assert env.get_metadata().name == "Bare"
    assert env.get_metadata().version == "1.0.0"
    env.close()


def test_keywords_are_those_of_the_signature() -> None:
    assert accepted(Bare().reset) == frozenset()
    assert accepted(Recording().reset) == frozenset(("seed", "episode_id"))
    assert accepted(lambda **kw: None) is None
    calls = Calls(Recording())
    assert calls.step(Do(what="x"), kwargs={"action": 1, "timeout_s": 2}).text == "x"
    assert calls.reset(kwargs={"seed": 1, "other": 2}).text == "ready"


def test_asynchronous_methods_count_only_where_overridden() -> None:
    assert Calls(Recording()).threaded
    assert not Calls(Recording()).step.asynchronous
    assert Calls(Asynchronous()).step.asynchronous
    assert not Calls(Inline()).threaded
    env = Recording()

    async def own(action: Any) -> Any:
        return Saw()

    env.step_async = own  # type: ignore[method-assign]
    assert Calls(env).step.asynchronous
    assert not Calls(env).reset.asynchronous


def test_a_coroutine_named_step_is_asynchronous() -> None:
    class Modern(Recording):
        async def step(self, action: Do) -> Saw:  # type: ignore[override]
            return Saw(text="async")

        async def reset(self) -> Saw:  # type: ignore[override]
            return Saw(text="fresh")

        async def close(self) -> None:  # type: ignore[override]
            self.closed = True

    Recording.made.clear()
    http = in_process(create_app(Modern, Do, Saw))
    with http.websocket_connect("/ws") as ws:
        ws.send_json({"type": "step", "data": {}})
        assert ws.receive_json()["data"]["observation"]["text"] == "async"
    assert http.post("/reset").json()["observation"]["text"] == "fresh"
    assert Recording.made[-1].closed


def test_names_of_factories() -> None:
    import functools

    def build() -> Recording:
        return Recording()

    assert environment_class(functools.partial(Recording)) is Recording
    assert environment_class(build) is None
    assert [factory_name(f) for f in (Recording, functools.partial(Recording), build)] == [
        "Recording",
        "Recording",
        "build",
    ]


def test_the_lazy_names_are_the_ones_that_type_checkers_see() -> None:
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(server))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    named = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert named == server._HOMES
    assert all(getattr(server, name) for name in server.__all__)
    with pytest.raises(AttributeError):
        _ = server.nothing


class Wide(Observation):
    maybe: str | None = None
    nested: dict[str, Any] = Field(default_factory=dict)


metadata = st.dictionaries(
    st.text(), st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.lists(st.integers(0, 9))
)


@settings(deadline=None, max_examples=60)
@given(metadata, st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False))
def test_every_declared_field_arrives(values: dict[str, Any], reward: Any) -> None:
    """What an observation holds is what arrives: null and absent apart, extras kept, nothing dropped.

    Scenario: K01
    Mutation: leave `metadata` out of the observation in messages.envelope, or drop the extras in codec
    """

    dispatcher = Dispatcher(Do, 1 << 20)
    saw = Wide(metadata=values, nested={"in": values}, reward=reward, done=True)
    data = codec.loads(dispatcher.encode("step", saw))["data"]
    assert data["observation"] == {"metadata": values, "maybe": None, "nested": {"in": values}}
    assert (data["reward"], data["done"]) == (reward, True)
    assert data.get("metadata", {}) == values
    rebuilt = Wide(**data["observation"], reward=data["reward"], done=data["done"])
    assert rebuilt == saw
    extras = {key: value for key, value in values.items() if key.isidentifier() and not key.startswith("_")}
    state = State(**{"episode_id": None, **{k: v for k, v in extras.items() if k not in ("episode_id", "step_count")}})
    assert State(**codec.loads(dispatcher.encode("state", state))["data"]) == state
