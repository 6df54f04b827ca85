"""The coding environment."""

from __future__ import annotations

import os
import sys
from typing import Any
from uuid import uuid4

from openenv_sandbox.server.environment import Environment, Transform

from .interpreter import Interpreter, Limits

try:
    from ..models import CodeAction, CodeObservation, CodeState
except ImportError:  # served from the folder, which then is no package
    from models import CodeAction, CodeObservation, CodeState


class PythonCodeActEnv(Environment[CodeAction, CodeObservation, CodeState]):
    """Runs Python; variables are kept from step to step, and a limit ends the step, not the server.

    The code runs in a process of its own; see `interpreter` for what that holds back and what it does not. There is no
    reward without a transform, such as `transforms.rewards()`.

    Args:
        transform: Applied to every observation of a step, whose ``metadata["last_code"]`` is the code.
        limits: Of each step; None for those of the environment variables CODE_TIME_S, CODE_MEMORY_MB and
            CODE_OUTPUT_BYTES.
        python: The program that runs the code; None for that of CODE_PYTHON, else the one that runs the server.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        transform: Transform[CodeObservation] | None = None,
        limits: Limits | None = None,
        python: str | None = None,
    ) -> None:
        super().__init__(transform)
        self._interpreter = Interpreter(limits or _limits(), python or os.environ.get("CODE_PYTHON") or sys.executable)
        self._state = CodeState(episode_id=str(uuid4()))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> CodeObservation:
        """Begin with a new interpreter and an empty folder.

        Args:
            seed: Given to ``random.seed`` of the new interpreter.
            episode_id: Name of the episode; a random one by default.
            **kwargs: Not used.
        """
        self._interpreter.close()
        self._state = CodeState(episode_id=episode_id or str(uuid4()))
        if seed is not None:
            self._interpreter.run(f"import random\nrandom.seed({int(seed)})\ndel random")
        return CodeObservation()

    def step(self, action: CodeAction, timeout_s: float | None = None, **kwargs: Any) -> CodeObservation:
        """Run the code of an action.

        Args:
            action: The code.
            timeout_s: A shorter time limit for this step, in seconds.
            **kwargs: Not used.
        """
        outcome = self._interpreter.run(action.code, time_s=timeout_s)
        self._state.step_count += 1
        self._state.last_exit_code = outcome.exit_code
        observation = CodeObservation(
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            exit_code=outcome.exit_code,
            metadata={"last_code": action.code},
        )
        return self._apply_transform(observation)

    @property
    def state(self) -> CodeState:
        """The episode so far."""
        return self._state

    def close(self) -> None:
        """End the interpreter."""
        self._interpreter.close()


def _limits() -> Limits:
    base = Limits()
    return Limits(
        time_s=float(os.environ.get("CODE_TIME_S", base.time_s)),
        memory_mb=int(os.environ.get("CODE_MEMORY_MB", base.memory_mb)),
        output_bytes=int(os.environ.get("CODE_OUTPUT_BYTES", base.output_bytes)),
    )
