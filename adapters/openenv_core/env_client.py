"""The names of `openenv.core.env_client` under the older package name."""

from openenv.core.env_client import *  # noqa: F403
