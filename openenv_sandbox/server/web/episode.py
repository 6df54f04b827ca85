"""What a page shows of an episode: the steps taken, and how the environment looked after the last one."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from openenv_sandbox.errors import EnvironmentError_
from openenv_sandbox.wire import codec, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ACTION_LOGS = 1000
"""Steps that are remembered; older ones are dropped."""

MAX_OBSERVATION_BYTES = 64 * 1024 * 1024
"""Bytes of observations that are remembered; of steps further back only action and reward are."""

ERROR_TEXT = 500
"""Characters that are shown of the text of an error."""


class ActionLog(BaseModel):
    """One step.

    Attributes:
        timestamp: When it was taken, ISO 8601.
        action: The action, without its metadata.
        observation: What came back, without reward and done.
        reward: Reward of the step.
        done: Whether the episode was over after it.
        step_count: The environment's own count after it.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    timestamp: str = Field(description="When the step was taken")
    action: dict[str, Any] = Field(description="The action, without its metadata")
    observation: dict[str, Any] = Field(description="What came back, without reward and done")
    reward: float | None = Field(default=None, description="Reward of the step")
    done: bool = Field(description="Whether the episode was over after it")
    step_count: int = Field(description="The environment's own count of steps")


class EpisodeState(BaseModel):
    """Where the episode of a page is.

    Attributes:
        episode_id: Name of the episode.
        step_count: The environment's own count of steps.
        current_observation: The last observation, without reward and done.
        action_logs: The steps since the last reset.
        is_reset: Whether nothing has been done since the last reset.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    episode_id: str | None = Field(default=None, description="Name of the episode")
    step_count: int = Field(description="The environment's own count of steps")
    current_observation: dict[str, Any] | None = Field(default=None, description="The last observation")
    action_logs: list[ActionLog] = Field(default_factory=list, description="The steps since the last reset")
    is_reset: bool = Field(default=True, description="Whether nothing has been done since the last reset")


class View:
    """How an environment looks after a reset or step; made where the environment lives, as it asks it.

    Args:
        env: The environment.
        observation: What its reset or step returned.
        state: Reads its state.

    Attributes:
        raw: The observation as JSON, in the form in which it travels.
        state: The state as plain data, None where reading it failed.
        state_error: Why it failed.
        html: What ``render_web`` returned.
        buttons: What ``web_actions`` returned.
        troubles: Sentences about hooks of the page that failed.

    Raises:
        SerializationError: The observation has no JSON form.
    """

    def __init__(self, env: Any, observation: Any, state: Any) -> None:
        self.raw = codec.dumps(messages.envelope(codec.fields_of(observation)))
        envelope = codec.loads(self.raw)
        reward = envelope["reward"]
        self.reward = reward if isinstance(reward, (bool, int, float)) else None
        self.done = bool(envelope["done"])
        self.state: Any = None
        self.state_error: str | None = None
        self.troubles: list[str] = []
        self._read_state(state)
        fields = {**envelope["observation"], "reward": self.reward, "done": self.done}
        self.html = self._hook(env, "render_web", fields, str)
        buttons = [] if self.done else self._hook(env, "web_actions", fields, _buttons)
        self.buttons: list[dict[str, Any]] = buttons or []

    @property
    def episode_id(self) -> str | None:
        """The episode's name, where the state has one."""
        found = self._of_state("episode_id")
        return None if found is None else str(found)

    @property
    def step_count(self) -> int | None:
        """The environment's own count, where the state has one."""
        found = self._of_state("step_count")
        return found if isinstance(found, int) else None

    def _of_state(self, name: str) -> Any:
        return self.state.get(name) if isinstance(self.state, dict) else None

    def _read_state(self, state: Any) -> None:
        try:
            found = state()
            self.state = None if found is None else codec.loads(codec.dumps(codec.fields_of(found)))
        except Exception as error:
            self.state_error = told(error)

    def _hook(self, env: Any, name: str, fields: Mapping[str, Any], read: Any) -> Any:
        hook = getattr(env, name, None)
        if hook is None:
            return None
        try:
            found = hook(dict(fields))
            return read(found) if found else None
        except Exception as error:  # a picture that fails must not fail the step
            self.troubles.append(f"{name} of the environment failed: {told(error)}")
            return None


def _buttons(found: Any) -> list[dict[str, Any]]:
    pairs = [{"label": str(label), "action": dict(action)} for label, action in found]
    plain: list[dict[str, Any]] = codec.loads(codec.dumps(pairs))
    return plain


class Episode:
    """The steps since the last reset, bounded in number and bytes.

    Attributes:
        started: Whether there has been a reset.
        reset_kwargs: What it was given.
        entries: The steps, in the light form that goes to pages: no observations.
    """

    def __init__(self) -> None:
        self.started = False
        self.reset_kwargs: dict[str, Any] = {}
        self.entries: list[dict[str, Any]] = []
        self.episode_id: str | None = None
        self.step_count = 0
        self._number = 0
        self._raw: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._actions: dict[int, dict[str, Any]] = {}

    def begin(self, view: View, reset_kwargs: Mapping[str, Any]) -> None:
        """Note the reset with which it starts."""
        self.started = True
        self.reset_kwargs = dict(reset_kwargs)
        self.episode_id = view.episode_id
        self._keep(view.raw)

    def add(self, view: View, sent: Mapping[str, Any], action: Mapping[str, Any]) -> dict[str, Any]:
        """Note a step.

        Args:
            view: How the environment looks after it.
            sent: The action as it was asked for, which can be sent again.
            action: The action as it was understood.

        Returns:
            Its entry.
        """
        self._number += 1
        self.episode_id = view.episode_id
        self.step_count = self._number if view.step_count is None else view.step_count
        entry = {
            "number": self._number,
            "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "action": dict(sent),
            "reward": view.reward,
            "done": view.done,
            "step_count": self.step_count,
        }
        self.entries.append(entry)
        self._actions[self._number] = dict(action)
        self._keep(view.raw)
        if len(self.entries) > MAX_ACTION_LOGS:
            old = self.entries.pop(0)["number"]
            self._actions.pop(old, None)
            self._bytes -= len(self._raw.pop(old, b""))
        return entry

    def observation(self, number: int) -> bytes | None:
        """The observation of a step as JSON; 0 is that of the reset, None is not remembered."""
        return self._raw.get(number)

    def last(self) -> bytes | None:
        """The last observation."""
        return self._raw.get(self._number) if self.started else None

    def lines(self) -> list[dict[str, Any]]:
        """Everything remembered, the reset first, for a file of JSON lines."""
        if not self.started:
            return []
        first = {
            "type": "reset",
            "episode_id": self.episode_id,
            "arguments": self.reset_kwargs,
            **self._envelope(0),
        }
        return [first, *({"type": "step", **entry, **self._envelope(entry["number"])} for entry in self.entries)]

    def as_state(self) -> EpisodeState:
        """The same in the form that ``/ws/ui`` pushes."""
        current = self._envelope(self._number) if self.started else {}
        return EpisodeState(
            episode_id=self.episode_id,
            step_count=self.step_count,
            current_observation=current.get("observation"),
            action_logs=[
                ActionLog(
                    timestamp=entry["at"],
                    action=self._actions[entry["number"]],
                    observation=self._envelope(entry["number"]).get("observation") or {},
                    reward=entry["reward"],
                    done=entry["done"],
                    step_count=entry["step_count"],
                )
                for entry in self.entries
            ],
            is_reset=not self.entries,
        )

    def _envelope(self, number: int) -> dict[str, Any]:
        raw = self._raw.get(number)
        found: dict[str, Any] = {"observation": None} if raw is None else codec.loads(raw)
        return found

    def _keep(self, raw: bytes) -> None:
        self._raw[self._number] = raw
        self._bytes += len(raw)
        while self._bytes > MAX_OBSERVATION_BYTES and len(self._raw) > 1:
            self._bytes -= len(self._raw.popitem(last=False)[1])


def told(error: BaseException) -> str:
    """An error in the words a page shows."""
    if isinstance(error, EnvironmentError_):
        return error.message[:ERROR_TEXT]
    text = str(error)[:ERROR_TEXT]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def plain_action(action: Any, sent: Mapping[str, Any]) -> dict[str, Any]:
    """An action as plain data, without its metadata; as it was sent where it has no such form."""
    try:
        found: dict[str, Any] = codec.loads(codec.dumps(codec.fields_of(action)))
    except Exception:  # a tensor, or a serializer of the author's own
        return dict(sent)
    found.pop("metadata", None)
    return found
