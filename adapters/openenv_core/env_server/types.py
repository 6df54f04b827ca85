"""The names of `openenv.core.env_server.types` under the older package name."""

from typing import TYPE_CHECKING, Any

import openenv.core.env_server.types as _new

if TYPE_CHECKING:
    from openenv.core.env_server.types import *  # noqa: F403

__all__ = _new.__all__


def __getattr__(name: str) -> Any:
    return getattr(_new, name)


def __dir__() -> list[str]:
    return dir(_new)
