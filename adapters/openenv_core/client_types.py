"""The names of `openenv.core.client_types` under the older package name."""

from openenv.core.client_types import *  # noqa: F403
