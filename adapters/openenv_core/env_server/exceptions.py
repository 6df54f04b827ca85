"""The names of `openenv.core.env_server.exceptions` under the older package name."""

from openenv.core.env_server.exceptions import *  # noqa: F403
