"""What callers of the server see beside the environment itself."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from openenv_sandbox.errors import ConfigError


class ConcurrencyConfigurationError(ConfigError):
    """More sessions were asked for than the environment class allows."""


class ServerMode(str, Enum):
    """Which routes are served.

    SIMULATION: all. PRODUCTION: without ``/reset``, ``/step`` and ``/state``; ``/ws`` is there in both.
    """

    SIMULATION = "simulation"
    PRODUCTION = "production"


class ConcurrencyConfig(BaseModel):
    """How many sessions, and for how long.

    Attributes:
        max_concurrent_envs: Most sessions at a time.
        session_timeout: Seconds without a message after which a session is closed with 4408; None is never.
        max_queued: How many connections may wait for a free session instead of being refused.
        queue_timeout: Seconds such a connection waits before it is refused after all.
    """

    model_config = ConfigDict(extra="forbid")

    max_concurrent_envs: int = Field(default=1, ge=1)
    session_timeout: float | None = Field(default=None, gt=0)
    max_queued: int = Field(default=0, ge=0)
    queue_timeout: float = Field(default=60.0, gt=0)


class ServerCapacityStatus(BaseModel):
    """How full the server is.

    Attributes:
        active_sessions: Sessions that hold a slot.
        max_sessions: Slots.
        abandoned_steps: Threads still inside a step whose client is gone; they hold no slot.
        queued: Connections waiting for a slot.
    """

    active_sessions: int
    max_sessions: int
    abandoned_steps: int = 0
    queued: int = 0

    @property
    def available_slots(self) -> int:
        """Slots that are free."""
        return max(0, self.max_sessions - self.active_sessions)

    @property
    def is_at_capacity(self) -> bool:
        """Whether no slot is free."""
        return self.available_slots == 0


class SessionInfo(BaseModel):
    """One session.

    Attributes:
        session_id: Its id.
        created_at: When it was opened, seconds since the epoch.
        last_activity_at: When its last message came or was answered.
        step_count: Steps taken through the server.
        environment_type: Class of its environment.
        attached: Whether a socket is attached.
    """

    session_id: str
    created_at: float
    last_activity_at: float
    step_count: int
    environment_type: str
    attached: bool


class ResetRequest(BaseModel):
    """Body of ``POST /reset``; further keys go to the environment."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)


class StepRequest(BaseModel):
    """Body of ``POST /step``; further keys go to the environment."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)


class EnvelopeResponse(BaseModel):
    """Answer of ``/reset`` and ``/step``."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
