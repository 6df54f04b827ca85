"""The names of `openenv.core.env_server.mcp_environment` under the older package name."""

from openenv.core.env_server.mcp_environment import *  # noqa: F403
