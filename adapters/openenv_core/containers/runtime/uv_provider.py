"""The names of `openenv.core.containers.runtime.uv_provider` under the older package name."""

from openenv.core.containers.runtime.uv_provider import *  # noqa: F403
