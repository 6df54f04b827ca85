"""The names of `openenv.core.generic_client` under the older package name."""

from openenv.core.generic_client import *  # noqa: F403
