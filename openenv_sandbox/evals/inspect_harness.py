"""Evaluations by Inspect AI. Needs the extra ``inspect``; what an evaluation measures is the task's own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from openenv_sandbox.errors import BrokenExtraError, ConfigError, GradingError, MissingExtraError
from openenv_sandbox.evals import EvalHarness
from openenv_sandbox.options import near

PARAMETERS = [
    "model",
    "model_base_url",
    "model_args",
    "task",
    "task_args",
    "max_samples",
    "max_connections",
    "temperature",
    "max_tokens",
    "epochs",
    "solver",
]
"""What ``eval_parameters`` may hold; all but ``task`` are handed to ``inspect_ai.eval`` by that name."""


class InspectAIHarness(EvalHarness):
    """Runs a task of Inspect AI.

    Args:
        log_dir: Where its logs go; None for where it puts them by itself.
    """

    def __init__(self, *, log_dir: str | None = None) -> None:
        self.log_dir = log_dir

    def run(
        self,
        harness_version: str,
        library_versions: dict[str, str],
        dataset: str,
        eval_parameters: dict[str, Any],
    ) -> dict[str, Any]:
        """Evaluate. Blocks, and cannot run inside an event loop.

        Args:
            harness_version: For the record.
            library_versions: For the record.
            dataset: The task, where ``eval_parameters`` names none.
            eval_parameters: Those of `PARAMETERS`; ``model`` is needed.

        Returns:
            Metric to value; where two scorers have a metric of one name, ``scorer/metric``.

        Raises:
            ConfigError: There is no model, or a parameter is unknown.
            MissingExtraError: Inspect AI is not installed.
            GradingError: The evaluation did not succeed.
        """
        given = {name: value for name, value in eval_parameters.items() if value is not None}
        if "scorer" in given:
            raise ConfigError("eval_parameters: Inspect AI takes a scorer from its task", hint="put it into the task")
        for name in given:
            if name not in PARAMETERS:
                raise ConfigError(f"eval_parameters has an unknown {name!r}{near(name, PARAMETERS)}")
        if not given.get("model"):
            raise ConfigError("eval_parameters names no model", hint="model='openai/gpt-4o'")
        task = given.pop("task", dataset)
        if self.log_dir is not None:
            given["log_dir"] = self.log_dir
        logs = _inspect().eval(task, **given)
        if not logs:
            raise GradingError(f"Inspect AI ran nothing for {task!r}", hint="is that the name of a task?")
        log = logs[0]
        if log.status != "success":
            said = getattr(getattr(log, "error", None), "message", None)
            raise GradingError(f"the evaluation of {task!r} ended as {log.status}{f': {said}' if said else ''}")
        return _scores(log.results)


def _inspect() -> Any:
    try:
        return import_module("inspect_ai")
    except ModuleNotFoundError as error:
        if error.name != "inspect_ai":
            raise BrokenExtraError(f"inspect_ai does not import: {error}") from error
        raise MissingExtraError("Inspect AI is not installed", hint="pip install 'openenv[inspect]'") from error


def _scores(results: Any) -> dict[str, Any]:
    rows = [
        (score.name, name, metric.value)
        for score in (results.scores if results is not None else ())
        for name, metric in score.metrics.items()
    ]
    names = [name for _, name, _ in rows]
    return {(f"{scorer}/{name}" if names.count(name) > 1 else name): value for scorer, name, value in rows}
