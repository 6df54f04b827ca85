"""The names of `openenv.core.rubrics.containers` under the older package name."""

from openenv.core.rubrics.containers import *  # noqa: F403
