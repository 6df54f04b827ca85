"""The names of `openenv.core.env_server.base_transforms` under the older package name."""

from openenv.core.env_server.base_transforms import *  # noqa: F403
