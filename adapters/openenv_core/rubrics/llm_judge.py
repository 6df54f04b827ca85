"""The names of `openenv.core.rubrics.llm_judge` under the older package name."""

from openenv.core.rubrics.llm_judge import *  # noqa: F403
