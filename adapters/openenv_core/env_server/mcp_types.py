"""The names of `openenv.core.env_server.mcp_types` under the older package name."""

from typing import TYPE_CHECKING

import openenv.core.env_server.mcp_types as _new

if TYPE_CHECKING:
    from openenv.core.env_server.mcp_types import *  # noqa: F403

__all__ = _new.__all__

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers

    def __getattr__(name):
        return getattr(_new, name)

    def __dir__():
        return dir(_new)
