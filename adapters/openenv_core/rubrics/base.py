"""The names of `openenv.core.rubrics.base` under the older package name."""

from openenv.core.rubrics.base import *  # noqa: F403
