"""The names of `openenv.core.containers.runtime.novita_provider` under the older package name."""

from openenv.core.containers.runtime.novita_provider import *  # noqa: F403
