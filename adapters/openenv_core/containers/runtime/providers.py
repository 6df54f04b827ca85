"""The names of `openenv.core.containers.runtime.providers` under the older package name."""

from openenv.core.containers.runtime.providers import *  # noqa: F403
