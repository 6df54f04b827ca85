"""The names of `openenv.core.env_server.serialization` under the older package name."""

from openenv.core.env_server.serialization import *  # noqa: F403
