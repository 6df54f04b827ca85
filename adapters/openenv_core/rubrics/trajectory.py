"""The names of `openenv.core.rubrics.trajectory` under the older package name."""

from openenv.core.rubrics.trajectory import *  # noqa: F403
