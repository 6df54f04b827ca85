"""A language model as judge."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Protocol

from openenv_sandbox.errors import GradingError
from openenv_sandbox.rubrics.base import Rubric

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

FIRST_NUMBER = r"(-?(?:\d+(?:\.\d+)?|\.\d+))"
_SETTINGS = ("prompt_template", "score_pattern", "default_score", "normalize")


class Completes(Protocol):
    """What the judge needs of a client."""

    def complete(self, prompt: str) -> Awaitable[str]:
        """The model's answer to a prompt."""
        ...


class LLMJudge(Rubric):
    """Asks a model for a score and reads the number in its answer.

    Args:
        prompt_template: Filled with ``{action}`` and ``{observation}``.
        client: Asked by ``await client.complete(prompt)``.
        score_pattern: Regular expression whose first group is the score; by default the first number.
        default_score: Score of an answer without one; None makes that an error, so that no reward is invented.
        normalize: Whether scores are clamped to the range from 0 to 1.
    """

    def __init__(
        self,
        prompt_template: str,
        client: Completes,
        *,
        score_pattern: str | None = None,
        default_score: float | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.prompt_template = prompt_template
        self.client = client
        self.score_pattern = score_pattern or FIRST_NUMBER
        self.default_score = default_score
        self.normalize = normalize

    async def forward(self, action: Any, observation: Any) -> float:
        """Ask and read.

        Raises:
            GradingError: The answer has no score and there is no default; whatever the client raises is passed on.
        """
        answer = await self.client.complete(self.prompt_template.format(action=action, observation=observation))
        score = self._read(answer)
        if score is None:
            if self.default_score is None:
                raise GradingError(
                    f"the judge's answer has no score: {answer[:200]!r}",
                    hint="ask for a number in the prompt, or pass score_pattern= or default_score=",
                )
            return self.default_score
        return min(1.0, max(0.0, score)) if self.normalize else score

    def _read(self, answer: str) -> float | None:
        found = re.search(self.score_pattern, answer)
        if found is None:
            return None
        try:
            score = float(found.group(1) if found.re.groups else found.group())
        except (TypeError, ValueError):
            return None
        return score if math.isfinite(score) else None

    def state_dict(self) -> dict[str, Any]:
        """The settings, without the client."""
        return {**super().state_dict(), **{name: getattr(self, name) for name in _SETTINGS}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over settings."""
        super().load_state_dict(state)
        for name in _SETTINGS:
            if name in state:
                setattr(self, name, state[name])
