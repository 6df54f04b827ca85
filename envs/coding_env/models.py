"""What the coding environment takes and shows."""

from __future__ import annotations

from openenv_sandbox.models import Action, Observation, State


class CodeAction(Action):
    """Run some code.

    Attributes:
        code: Python statements. What they define is there in later steps of the episode.
    """

    code: str


class CodeObservation(Observation):
    """What the code wrote and how it ended.

    Attributes:
        stdout: What it wrote there, cut at the environment's limit.
        stderr: Likewise; a traceback where it raised, and a sentence where a limit ended it.
        exit_code: 0; 1 where it raised; the argument of ``sys.exit``; 124 where its time was up; 137 where it was
            killed.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CodeState(State):
    """The episode so far.

    Attributes:
        last_exit_code: Of the last step; 0 before the first.
    """

    last_exit_code: int = 0
