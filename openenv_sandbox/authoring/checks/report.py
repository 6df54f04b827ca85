"""The outcome of a validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Criterion:
    """One thing that was looked at.

    Attributes:
        id: Its name, which stays the same between releases.
        description: What is asked for.
        passed: Whether it is so; None where it could not be looked at.
        required: Whether the environment fails without it.
        details: What was seen.
    """

    id: str
    description: str
    passed: bool | None
    required: bool = True
    details: str = ""


@dataclass
class Report:
    """Everything that was looked at.

    Attributes:
        target: Folder or address.
        criteria: In the order they were looked at.
        measured: Seconds and bytes: ``cold_start_s``, ``image_bytes``.
    """

    target: str
    criteria: list[Criterion] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing required failed."""
        return not any(one.required and one.passed is False for one in self.criteria)

    def add(self, id: str, passed: bool | None, details: str = "", *, required: bool = True) -> None:
        """Note one criterion."""
        self.criteria.append(Criterion(id, DESCRIPTIONS[id], passed, required, details))

    def failed(self, id: str) -> bool:
        """Whether a criterion was looked at and is not met."""
        return any(one.id == id and one.passed is False for one in self.criteria)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "target": self.target,
            "passed": self.passed,
            "summary": {
                "passed": sum(one.passed is True for one in self.criteria),
                "failed": sum(one.passed is False and one.required for one in self.criteria),
                "warnings": sum(one.passed is False and not one.required for one in self.criteria),
                "not_checked": sum(one.passed is None for one in self.criteria),
                **self.measured,
            },
            "criteria": [vars(one) for one in self.criteria],
        }


DESCRIPTIONS = {
    "manifest": "openenv.yaml names the environment, its application and its port",
    "entry-point": "pyproject.toml has a script `server` that names a function main",
    "app": "the application's module exists and defines main under a guard",
    "dependency": "openenv is declared as a dependency",
    "older-distribution": "openenv-core, which overwrites openenv's files, is not pulled in",
    "dockerfile": "there is a Dockerfile that says what the image runs",
    "lock-file": "the dependencies are locked (uv.lock)",
    "start": "the server starts and answers /health",
    "openenv-version": "the server runs on the openenv that validates it",
    "schema": "/schema describes action, observation and state",
    "reset": "reset answers with an observation",
    "step": "step answers with an observation, a reward that is a number or null, and done",
    "state": "state has an episode id and counts steps",
    "serialisation": "what the environment answers can be sent as JSON",
    "seed": "the same seed is the same episode, or no seed is accepted",
    "capacity": "as many sessions open as the environment claims",
    "concurrency": "sessions side by side go as each would alone",
    "event-loop": "other requests are answered while an environment works",
    "close": "what a session opens is closed with it",
    "image-size": "the image builds",
}
"""What each criterion asks for."""
