"""Rewards for code, as transforms of its observations. The code is in ``metadata["last_code"]``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from openenv_sandbox.server.environment import CompositeTransform, Transform

try:
    from ..models import CodeObservation
except ImportError:  # served from the folder, which then is no package
    from models import CodeObservation

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

RISKY_MODULES = frozenset({"ctypes", "multiprocessing", "os", "shutil", "signal", "socket", "subprocess"})
RISKY_CALLS = frozenset({"__import__", "compile", "eval", "exec"})


class _Adding(Transform[CodeObservation]):
    """Adds to the reward, which begins at 0 where nothing has set it."""

    def __call__(self, observation: CodeObservation) -> CodeObservation:
        """The same observation with its reward."""
        code = str((observation.metadata or {}).get("last_code", ""))
        observation.reward = float(observation.reward or 0.0) + self.score(code, observation)
        return observation

    def score(self, code: str, observation: CodeObservation) -> float:
        """What to add."""
        raise AssertionError("a transform of rewards says how much")


class SuccessReward(_Adding):
    """For code that ended with 0, and another value for code that did not.

    Args:
        success: Where the exit code is 0.
        failure: Else.
    """

    def __init__(self, success: float = 1.0, failure: float = 0.0) -> None:
        self.success, self.failure = success, failure

    def score(self, code: str, observation: CodeObservation) -> float:
        """One of the two."""
        return self.success if observation.exit_code == 0 else self.failure


class RiskPenalty(_Adding):
    """For code that names what it should not need. It judges the text, it does not stop anything.

    Args:
        penalty: Added once where something was found.
        modules: Imports that count.
        calls: Names of functions that count.
    """

    def __init__(
        self,
        penalty: float = -1.0,
        modules: Collection[str] = RISKY_MODULES,
        calls: Collection[str] = RISKY_CALLS,
    ) -> None:
        self.penalty, self.modules, self.calls = penalty, frozenset(modules), frozenset(calls)

    def score(self, code: str, observation: CodeObservation) -> float:
        """The penalty, or 0; code that does not parse has none."""
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return 0.0
        return self.penalty if any(self._counts(node) for node in ast.walk(tree)) else 0.0

    def _counts(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(alias.name.partition(".")[0] in self.modules for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            return (node.module or "").partition(".")[0] in self.modules
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.calls


class LengthPenalty(_Adding):
    """For code that is longer than it need be.

    Args:
        limit: Characters that cost nothing.
        per_character: Added for each further one.
    """

    def __init__(self, limit: int = 2000, per_character: float = -0.001) -> None:
        self.limit, self.per_character = limit, per_character

    def score(self, code: str, observation: CodeObservation) -> float:
        """Proportional to what is over the limit."""
        return self.per_character * max(0, len(code) - self.limit)


def rewards(*more: Transform[CodeObservation]) -> CompositeTransform:
    """Success, minus risk and length, and what else is given."""
    parts: Sequence[Transform[CodeObservation]] = (SuccessReward(), RiskPenalty(), LengthPenalty(), *more)
    return CompositeTransform(list(parts))
