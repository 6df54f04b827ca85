"""Serving an environment."""

from openenv_sandbox.server.app import HTTPEnvServer as HTTPEnvServer
from openenv_sandbox.server.app import create_app as create_app
from openenv_sandbox.server.app import create_fastapi_app as create_fastapi_app

__all__ = [
    "HTTPEnvServer",
    "create_app",
    "create_fastapi_app",
]
