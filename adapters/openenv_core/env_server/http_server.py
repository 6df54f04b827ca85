"""The names of `openenv.core.env_server.http_server` under the older package name."""

from openenv.core.env_server.http_server import *  # noqa: F403
