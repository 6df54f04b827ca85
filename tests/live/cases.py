"""Which backends can be tested with an account, and how cheaply."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv_sandbox import config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from openenv_sandbox.provider import SandboxProvider

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("aca", "daytona", "e2b", "islo", "modal", "novita", "runloop")
RECORDABLE = ("aca", "daytona", "novita", "runloop")
CASSETTES = Path(__file__).parent / "cassettes"

# Read at import, because each test clears such variables; taken away, because the library would wonder about them.
NAMED = frozenset(name.strip() for name in os.environ.pop("OPENENV_LIVE", "").split(",") if name.strip())
IMAGE = os.environ.pop("OPENENV_LIVE_IMAGE", None)
_SETTINGS = config.load() if NAMED else None

SPEC: dict[str, Any] = {
    # What is left by an accident ends within twenty minutes.
    "timeouts": {"create": 300.0, "ready": 300.0, "episode": 600.0, "margin": 60.0},
}
PUBLIC = {"aca", "islo"}


def target(name: str) -> str:
    """``module:Class`` of a backend."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    return str(points["openenv.sandbox_providers"][name])


def provider(name: str) -> type[SandboxProvider]:
    """The class of a backend."""
    module, _, cls = target(name).partition(":")
    found: type[SandboxProvider] = getattr(importlib.import_module(module), cls)
    return found


def options(name: str) -> dict[str, Any]:
    """What is configured for a backend."""
    found = _SETTINGS.options_for(name) if _SETTINGS is not None else None
    return dict(found or {})


def missing(name: str) -> str | None:
    """Why a backend that was named cannot be tested; None when it can."""
    cls = provider(name)
    check = cls.check(options(name))
    if not check.ready:
        return f"{name}: {check.reason} ({check.hint})"
    if IMAGE is None and "folder" not in cls.capabilities.images:
        return f"{name}: builds no folders: set OPENENV_LIVE_IMAGE to an image that it can pull"
    return None


def spec(name: str) -> dict[str, Any]:
    """Fields of every launch."""
    return {**SPEC, "exposure": "public"} if name in PUBLIC else dict(SPEC)
