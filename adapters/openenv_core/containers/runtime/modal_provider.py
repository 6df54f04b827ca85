"""The names of `openenv.core.containers.runtime.modal_provider` under the older package name."""

from openenv.core.containers.runtime.modal_provider import *  # noqa: F403
