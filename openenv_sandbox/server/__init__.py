"""Serve an environment.

    from openenv_sandbox.server import Action, Environment, Observation, State, create_app

Names are resolved on first use: the types cost no web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openenv_sandbox.models import Action as Action
    from openenv_sandbox.models import CallToolAction as CallToolAction
    from openenv_sandbox.models import CallToolObservation as CallToolObservation
    from openenv_sandbox.models import ListToolsAction as ListToolsAction
    from openenv_sandbox.models import ListToolsObservation as ListToolsObservation
    from openenv_sandbox.models import Observation as Observation
    from openenv_sandbox.models import State as State
    from openenv_sandbox.models import Tool as Tool
    from openenv_sandbox.server.app import HTTPEnvServer as HTTPEnvServer
    from openenv_sandbox.server.app import create_app as create_app
    from openenv_sandbox.server.app import create_fastapi_app as create_fastapi_app
    from openenv_sandbox.server.environment import CompositeTransform as CompositeTransform
    from openenv_sandbox.server.environment import Environment as Environment
    from openenv_sandbox.server.environment import EnvironmentMetadata as EnvironmentMetadata
    from openenv_sandbox.server.environment import NullTransform as NullTransform
    from openenv_sandbox.server.environment import Transform as Transform
    from openenv_sandbox.server.tools import ToolEnvironment as ToolEnvironment
    from openenv_sandbox.server.tools import tool as tool
    from openenv_sandbox.server.types import ConcurrencyConfig as ConcurrencyConfig
    from openenv_sandbox.server.types import ConcurrencyConfigurationError as ConcurrencyConfigurationError
    from openenv_sandbox.server.types import ServerCapacityStatus as ServerCapacityStatus
    from openenv_sandbox.server.types import ServerMode as ServerMode
    from openenv_sandbox.server.types import SessionInfo as SessionInfo

# name -> module; the block above says the same to type checkers, and a test holds the two together.
_HOMES = {
    **dict.fromkeys(
        (
            "Action",
            "CallToolAction",
            "CallToolObservation",
            "ListToolsAction",
            "ListToolsObservation",
            "Observation",
            "State",
            "Tool",
        ),
        "openenv_sandbox.models",
    ),
    **dict.fromkeys(("HTTPEnvServer", "create_app", "create_fastapi_app"), "openenv_sandbox.server.app"),
    **dict.fromkeys(
        ("CompositeTransform", "Environment", "EnvironmentMetadata", "NullTransform", "Transform"),
        "openenv_sandbox.server.environment",
    ),
    **dict.fromkeys(("ToolEnvironment", "tool"), "openenv_sandbox.server.tools"),
    **dict.fromkeys(
        ("ConcurrencyConfig", "ConcurrencyConfigurationError", "ServerCapacityStatus", "ServerMode", "SessionInfo"),
        "openenv_sandbox.server.types",
    ),
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
