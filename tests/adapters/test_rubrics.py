"""Rubrics: order of hooks, children, containers, trajectories and the judge, plain and asynchronous."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import GradingError
from openenv_sandbox.rubrics import (
    ExponentialDiscountingTrajectoryRubric,
    Gate,
    LLMJudge,
    Rubric,
    RubricDict,
    RubricList,
    Sequential,
    WeightedSum,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


class Fixed(Rubric):
    def __init__(self, score: float) -> None:
        super().__init__()
        self.score = score
        self.asked = 0

    def forward(self, action: Any, observation: Any) -> float:
        self.asked += 1
        return self.score


class Later(Fixed):
    async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        self.asked += 1
        return self.score


class Total(ExponentialDiscountingTrajectoryRubric):
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        return float(sum(action for action, _ in trajectory))


async def value(score: Any) -> Any:
    return await score if inspect.isawaitable(score) else score


def step(done: bool = False) -> Any:
    return SimpleNamespace(done=done, reward=7.0)


BOTH = pytest.mark.parametrize("kind", [Fixed, Later])


@BOTH
async def test_hooks_run_around_the_score_in_order(kind: type[Fixed]) -> None:
    rubric, seen = kind(0.5), []
    rubric.register_forward_pre_hook(lambda r, a, o: seen.append(("before", a)))
    rubric.register_forward_hook(lambda r, a, o, score: seen.append(("after", score)))
    assert rubric.last_score is None
    assert await value(rubric("act", step())) == 0.5
    assert seen == [("before", "act"), ("after", 0.5)]
    assert rubric.last_score == 0.5


async def test_an_asynchronous_hook_is_awaited_before_the_call_ends() -> None:
    rubric, seen = Fixed(1.0), []

    async def hook(r: Rubric, a: Any, o: Any, score: float) -> None:
        seen.append(score)

    rubric.register_forward_hook(hook)
    call = rubric(0, step())
    assert inspect.iscoroutine(call)
    assert await call == 1.0
    assert seen == [1.0]


async def test_a_plain_forward_may_return_a_coroutine() -> None:
    class Wraps(Rubric):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Later(0.25)

        def forward(self, action: Any, observation: Any) -> Any:
            return self.inner(action, observation)

    rubric = Wraps()
    assert await value(rubric(0, step())) == 0.25
    assert rubric.last_score == rubric.inner.last_score == 0.25


def test_children_are_registered_in_order_and_found_by_path() -> None:
    rubric = Sequential(Gate(Fixed(1.0), 0.5), Fixed(0.5))
    assert [name for name, _ in rubric.named_children()] == ["rubric_0", "rubric_1"]
    assert [name for name, _ in rubric.named_rubrics()] == ["rubric_0", "rubric_0.rubric", "rubric_1"]
    assert [path for path, _ in rubric.named_rubrics("root")][:1] == ["root.rubric_0"]
    assert rubric.get_rubric("rubric_0.rubric") in list(rubric.rubrics())
    assert rubric not in list(rubric.rubrics())
    with pytest.raises(KeyError, match="no rubric 'x'"):
        rubric.get_rubric("rubric_0.x")


def test_an_attribute_that_is_no_rubric_any_more_is_no_child_any_more() -> None:
    gate = Gate(Fixed(1.0))
    gate.rubric = None  # type: ignore[assignment]
    assert list(gate.children()) == []


def test_children_before_the_constructor_are_an_error_that_says_so() -> None:
    class Early(Fixed):
        def __init__(self) -> None:
            self.part = Fixed(1.0)

    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        Early()


@BOTH
@pytest.mark.parametrize(
    ("scores", "expected", "asked"),
    [((), 1.0, ()), ((0.5, 0.25), 0.25, (1, 1)), ((0.5, 0.0, 1.0), 0.0, (1, 1, 0)), ((1.0, 0.0), 0.0, (1, 1))],
)
async def test_sequential_stops_at_the_first_zero(
    kind: type[Fixed], scores: tuple[float, ...], expected: float, asked: tuple[int, ...]
) -> None:
    parts = [kind(score) for score in scores]
    assert await value(Sequential(*parts)(0, step())) == expected
    assert tuple(part.asked for part in parts) == asked


async def test_sequential_mixes_plain_and_asynchronous_rubrics() -> None:
    parts = [Fixed(1.0), Later(0.5), Fixed(0.0), Fixed(1.0)]
    assert await value(Sequential(*parts)(0, step())) == 0.0
    assert [part.asked for part in parts] == [1, 1, 1, 0]


@BOTH
async def test_gate_passes_the_score_from_its_threshold_on(kind: type[Fixed]) -> None:
    assert await value(Gate(kind(0.5), threshold=0.5)(0, step())) == 0.5
    assert await value(Gate(kind(0.49), threshold=0.5)(0, step())) == 0.0
    assert await value(Gate(kind(0.99))(0, step())) == 0.0


async def test_weighted_sum_asks_asynchronous_rubrics_at_the_same_time() -> None:
    import anyio

    met = anyio.Event()

    class Waits(Later):
        async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
            await met.wait()
            return self.score

    class Opens(Later):
        async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
            met.set()
            return self.score

    rubric = WeightedSum([Waits(1.0), Opens(0.5), Fixed(0.0)], [0.5, 0.25, 0.25])
    with anyio.fail_after(30):
        assert await value(rubric(0, step())) == pytest.approx(0.625)


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [0.5, float("nan")]])
def test_weights_that_are_no_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        WeightedSum([Fixed(1.0), Fixed(1.0)], weights)


def test_lists_and_dicts_hold_rubrics_and_have_no_score() -> None:
    first, second = Fixed(1.0), Fixed(0.5)
    rubrics = RubricList([first])
    rubrics.append(second)
    assert (len(rubrics), rubrics[1], list(rubrics)) == (2, second, [first, second])
    assert rubrics.get_rubric("1") is second
    named = RubricDict({"keys": first})
    named["other"] = second
    assert (list(named.keys()), "other" in named, named["keys"]) == (["keys", "other"], True, first)
    assert named.get_rubric("keys") is first
    calls: list[Callable[[Any, Any], Any]] = [rubrics, named]
    for container in calls:
        with pytest.raises(NotImplementedError, match="no score of its own"):
            container(0, step())


def test_a_trajectory_is_scored_when_it_is_done_and_discounted_backwards() -> None:
    rubric = Total(gamma=0.5, intermediate_reward=0.125)
    assert [rubric(n, step(done=n == 3)) for n in (1, 2, 3)] == [0.125, 0.125, 6.0]
    assert rubric.compute_step_rewards() == [1.5, 3.0, 6.0]
    rubric.trajectory.clear()
    assert len(rubric.trajectory) == 3
    rubric.reset()
    assert rubric.trajectory == []
    assert rubric.compute_step_rewards() == []
    with pytest.raises(ValueError, match="gamma"):
        Total(gamma=1.5)


def test_settings_survive_a_round_trip_with_those_of_children() -> None:
    class Holder(Fixed):
        def __init__(self, gamma: float) -> None:
            super().__init__(1.0)
            self.part = Total(gamma, 0.5)

    assert Fixed(1.0).state_dict() == {}
    state = Holder(0.25).state_dict()
    assert state == {"part": {"gamma": 0.25, "intermediate_reward": 0.5}}
    other = Holder(0.75)
    other.load_state_dict(state)
    assert other.part.gamma == 0.25


class Model:
    def __init__(self, answer: str) -> None:
        self.answer, self.prompts = answer, list[str]()

    async def complete(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answer


@pytest.mark.parametrize(
    ("answer", "options", "score"),
    [
        ("Score: 0.75 of 1", {}, 0.75),
        ("I say 7", {}, 1.0),
        ("I say 7", {"normalize": False}, 7.0),
        ("-3", {}, 0.0),
        ("2 apples, score=0.5", {"score_pattern": r"score=([\d.]+)"}, 0.5),
        ("none", {"default_score": 0.0}, 0.0),
    ],
)
async def test_the_judge_reads_the_number(answer: str, options: dict[str, Any], score: float) -> None:
    model = Model(answer)
    assert await value(LLMJudge("{action} gave {observation}", model, **options)("a", "o")) == score
    assert model.prompts == ["a gave o"]


class Failing(Model):
    async def complete(self, prompt: str) -> str:
        raise ConnectionError("the model is away")


@pytest.mark.parametrize(
    ("model", "options", "error"),
    [
        (Model("no number"), {}, GradingError),
        (Model(""), {}, GradingError),
        (Model("9" * 400), {}, GradingError),
        (Model("score=high"), {"score_pattern": "score=(.*)"}, GradingError),
        (Model("x"), {"score_pattern": "(y)?x"}, GradingError),
        (Failing(""), {"default_score": 0.0}, ConnectionError),
    ],
)
async def test_a_failure_to_grade_is_never_a_number(
    model: Model, options: dict[str, Any], error: type[Exception]
) -> None:
    """Whatever goes wrong in grading is an error.

    Scenario: L03
    Mutation: LLMJudge.forward returns 0.0 where _read gives None
    """
    judge = Sequential(LLMJudge("{action}", model, **options))
    with pytest.raises(error):
        await value(judge("a", "o"))
    assert judge.last_score is None
