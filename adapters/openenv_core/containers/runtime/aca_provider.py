"""The names of `openenv.core.containers.runtime.aca_provider` under the older package name."""

from openenv.core.containers.runtime.aca_provider import *  # noqa: F403
