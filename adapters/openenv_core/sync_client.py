"""The names of `openenv.core.sync_client` under the older package name."""

from openenv.core.sync_client import *  # noqa: F403
