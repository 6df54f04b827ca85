"""Errors of the server, by the names used before."""

from openenv_sandbox.errors import CapacityError as SessionCapacityError
from openenv_sandbox.errors import FactoryError as EnvironmentFactoryError
from openenv_sandbox.errors import OpenEnvError as OpenEnvError
from openenv_sandbox.server.types import ConcurrencyConfigurationError as ConcurrencyConfigurationError

__all__ = [
    "ConcurrencyConfigurationError",
    "EnvironmentFactoryError",
    "OpenEnvError",
    "SessionCapacityError",
]
