"""Evaluations by Inspect AI: what it is called with, and what comes of its log."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from openenv.core.evals import EvalConfig, InspectAIHarness

from openenv_sandbox.errors import ConfigError, GradingError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = {"model": "mockllm/model"}


def log(status: str = "success", **metrics: dict[str, float]) -> Any:
    scores = [
        SimpleNamespace(name=name, metrics={key: SimpleNamespace(value=value) for key, value in found.items()})
        for name, found in metrics.items()
    ]
    error = None if status == "success" else SimpleNamespace(message="out of cheese")
    return SimpleNamespace(status=status, error=error, results=SimpleNamespace(scores=scores) if scores else None)


@pytest.fixture
def inspect_ai(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], list[Any]]:
    """A stand-in that answers with the given logs; returns what it is called with."""

    def answers(logs: list[Any]) -> list[Any]:
        seen: list[Any] = []
        module: Any = ModuleType("inspect_ai")

        def evaluate(*args: Any, **kwargs: Any) -> list[Any]:
            seen.append((args, kwargs))
            return logs

        module.eval = evaluate
        monkeypatch.setitem(sys.modules, "inspect_ai", module)
        return seen

    return answers


def run(dataset: str = "ds", log_dir: str | None = None, **parameters: Any) -> dict[str, Any]:
    return InspectAIHarness(log_dir=log_dir).run("1", {}, dataset, parameters)


def test_scores_of_a_run(inspect_ai: Callable[[list[Any]], list[Any]]) -> None:
    """Two metrics of one name are told apart instead of one hiding the other.

    Mutation: let the last scorer win
    """
    seen = inspect_ai([log(match={"accuracy": 0.5, "stderr": 0.1})])
    config = EvalConfig(
        harness_name="InspectAIHarness",
        harness_version="1",
        library_versions={},
        dataset="ds",
        eval_parameters={**MODEL, "temperature": 0.1, "epochs": None},
    )
    assert InspectAIHarness(log_dir="logs").run_from_config(config).scores == {"accuracy": 0.5, "stderr": 0.1}
    assert seen == [(("ds",), {**MODEL, "temperature": 0.1, "log_dir": "logs"})]
    seen = inspect_ai([log(match={"accuracy": 0.5}, judge={"accuracy": 0.7, "mean": 1.0})])
    assert run(task="t", task_args={"a": 1}, **MODEL) == {"match/accuracy": 0.5, "judge/accuracy": 0.7, "mean": 1.0}
    assert seen == [(("t",), {**MODEL, "task_args": {"a": 1}})]


def test_a_run_that_failed_has_no_scores(inspect_ai: Callable[[list[Any]], list[Any]]) -> None:
    """An error, never a score of 0."""
    inspect_ai([log("error")])
    with pytest.raises(GradingError, match="ended as error: out of cheese"):
        run(**MODEL)
    inspect_ai([])
    with pytest.raises(GradingError, match="ran nothing"):
        run(**MODEL)


def test_what_is_refused(inspect_ai: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Inspect AI is asked; a missing one is named with the line that installs it."""
    seen = inspect_ai([log()])
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "names no model"),
        ({**MODEL, "temprature": 1}, "did you mean 'temperature'"),
        ({**MODEL, "scorer": ["x"]}, "from its task"),
    ]
    for parameters, words in cases:
        with pytest.raises(ConfigError, match=words):
            run(**parameters)
    assert not seen
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(MissingExtraError, match=r"openenv\[inspect\]"):
        run(**MODEL)


@pytest.mark.skipif(
    find_spec("inspect_ai") is None, reason="Inspect AI is not installed: pip install 'openenv[inspect]'"
)
@pytest.mark.filterwarnings("default")
def test_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of two samples. Its solver answers by itself: counting the tokens of a model would need the network."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.model import ModelOutput\n"
        "from inspect_ai.scorer import includes\n"
        "from inspect_ai.solver import solver\n"
        "@solver\n"
        "def two():\n"
        "    async def solve(state, generate):\n"
        "        state.output = ModelOutput.from_content('none', 'two')\n"
        "        return state\n"
        "    return solve\n"
        "@task\n"
        "def sums():\n"
        "    data = [Sample(input='1 + 1', target='two'), Sample(input='1 + 2', target='three')]\n"
        "    return Task(dataset=data, solver=two(), scorer=includes())\n"
    )
    found = run("sums.py", str(tmp_path / "logs"), max_samples=1, **MODEL)
    assert found["accuracy"] == 0.5
    assert list((tmp_path / "logs").iterdir())
