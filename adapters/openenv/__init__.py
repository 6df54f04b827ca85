"""The import name of the existing ecosystem."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv import core as core
    from openenv._version import __version__ as __version__
    from openenv_sandbox.auto.classes import AutoAction as AutoAction
    from openenv_sandbox.auto.classes import AutoEnv as AutoEnv
    from openenv_sandbox.client import GenericAction as GenericAction
    from openenv_sandbox.client import GenericEnvClient as GenericEnvClient
    from openenv_sandbox.client import SyncEnvClient as SyncEnvClient

_HOMES = {
    "AutoAction": "openenv_sandbox.auto.classes",
    "AutoEnv": "openenv_sandbox.auto.classes",
    "GenericAction": "openenv_sandbox.client",
    "GenericEnvClient": "openenv_sandbox.client",
    "SyncEnvClient": "openenv_sandbox.client",
    "__version__": "openenv._version",
    "auto": "",
    "core": "",
}

__all__ = [
    "AutoAction",
    "AutoEnv",
    "GenericAction",
    "GenericEnvClient",
    "SyncEnvClient",
    "__version__",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
