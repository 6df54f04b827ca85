"""The names of `openenv.core.llm_client` under the older package name."""

from openenv.core.llm_client import *  # noqa: F403
