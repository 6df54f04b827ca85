"""The names of `openenv.core.containers.runtime` under the older package name."""

from openenv.core.containers.runtime import *  # noqa: F403
