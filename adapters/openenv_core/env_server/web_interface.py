"""The names of `openenv.core.env_server.web_interface` under the older package name."""

from openenv.core.env_server.web_interface import *  # noqa: F403
