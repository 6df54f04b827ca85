"""Evaluations that can be repeated: what was run, with which versions, and the scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EvalConfig", "EvalHarness", "EvalResult"]


class EvalConfig(BaseModel):
    """What is needed to repeat an evaluation.

    Attributes:
        harness_name: Class of the harness.
        harness_version: Its version.
        library_versions: Versions of what it used, by name.
        dataset: What was evaluated on.
        eval_parameters: Everything else.
    """

    model_config = ConfigDict(extra="forbid")

    harness_name: str
    harness_version: str
    library_versions: dict[str, str]
    dataset: str
    eval_parameters: dict[str, Any]


class EvalResult(BaseModel):
    """Outcome of an evaluation.

    Attributes:
        config: What was run.
        scores: Scores by name.
    """

    model_config = ConfigDict(extra="forbid")

    config: EvalConfig
    scores: dict[str, Any] = Field(description="Scores by name")


class EvalHarness(ABC):
    """Runs evaluations."""

    @abstractmethod
    def run(
        self,
        harness_version: str,
        library_versions: dict[str, str],
        dataset: str,
        eval_parameters: dict[str, Any],
    ) -> dict[str, Any]:
        """Evaluate.

        Args:
            harness_version: Version that is asked for.
            library_versions: Versions that are asked for, by name.
            dataset: What to evaluate on.
            eval_parameters: Everything else.

        Returns:
            Scores by name.
        """

    def run_from_config(self, config: EvalConfig) -> EvalResult:
        """Evaluate what a configuration says.

        Raises:
            ValueError: It is for another harness.
        """
        if config.harness_name != self.name:
            raise ValueError(f"the configuration is for {config.harness_name}, this is {self.name}")
        scores = self.run(config.harness_version, config.library_versions, config.dataset, config.eval_parameters)
        return EvalResult(config=config, scores=scores)

    @property
    def name(self) -> str:
        """Name of the harness, by default that of its class."""
        return type(self).__name__
