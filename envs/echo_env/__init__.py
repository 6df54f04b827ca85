"""The echo environment: a client, its observation, and the actions it takes."""

from openenv_sandbox.models import CallToolAction, ListToolsAction

from .client import EchoEnv
from .models import EchoObservation

__all__ = ["CallToolAction", "EchoEnv", "EchoObservation", "ListToolsAction"]
