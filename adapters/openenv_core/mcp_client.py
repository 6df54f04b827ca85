"""The names of `openenv.core.mcp_client` under the older package name."""

from openenv.core.mcp_client import *  # noqa: F403
