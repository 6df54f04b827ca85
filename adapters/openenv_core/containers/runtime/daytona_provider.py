"""The names of `openenv.core.containers.runtime.daytona_provider` under the older package name."""

from openenv.core.containers.runtime.daytona_provider import *  # noqa: F403
