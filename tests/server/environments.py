"""Environments for the tests of the server, and applications that a plain uvicorn can serve."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, ClassVar

from openenv_sandbox.models import Action, Observation, State
from openenv_sandbox.server import Environment


class Do(Action):
    what: str = ""
    size: int = 0
    seconds: float = 0.0


class Saw(Observation):
    text: str = ""
    thread: int = 0
    extra: Any = None


class Recording(Environment[Do, Saw, State]):
    """Does what the action says, and keeps which threads it was used from. Never calls the base constructor."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made: ClassVar[list[Recording]] = []
    gates: ClassVar[dict[str, threading.Event]] = {}

    def __init__(self) -> None:
        self.threads = {threading.get_ident()}
        self.closed = False
        self._state = State(episode_id=None)
        self.made.append(self)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Saw:
        self.threads.add(threading.get_ident())
        self._state = State(episode_id=episode_id, seed=seed)
        return Saw(text="ready", thread=threading.get_ident(), metadata={"fresh": True})

    def step(self, action: Do) -> Saw:
        self.threads.add(threading.get_ident())
        self._state.step_count += 1
        answer = Saw(text=action.what, thread=threading.get_ident(), reward=1, done=False)
        match action.what.split(":"):
            case ["raise", text]:
                raise ValueError(text)
            case ["exit", _]:
                raise SystemExit(3)
            case ["big", _]:
                answer.text = "x" * action.size
            case ["object", _]:
                answer.extra = {"deep": [object()]}
            case ["nan", _]:
                answer.reward = float("nan")
            case ["sleep", _]:
                time.sleep(action.seconds)
            case ["wait", name]:
                self.gates[name].wait(30)
            case ["loop", _]:
                answer.text = asyncio.run(asyncio.sleep(0, "nested"))
            case _:
                pass
        return answer

    @property
    def state(self) -> State:
        self.threads.add(threading.get_ident())
        return self._state

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed = True


class Inline(Recording):
    BLOCKING = False


class Asynchronous(Recording):
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Saw:
        return self.reset(seed, episode_id)

    async def step_async(self, action: Do, timeout_s: float | None = None, **kwargs: Any) -> Saw:
        if action.what == "asleep":
            await asyncio.sleep(action.seconds)
        return self.step(action)


class Single(Recording):
    """One at a time, as most environments are."""

    SUPPORTS_CONCURRENT_SESSIONS = False
