"""The environments that are installed."""

from openenv_sandbox.auto.discovery import EnvironmentDiscovery as EnvironmentDiscovery
from openenv_sandbox.auto.discovery import EnvironmentInfo as EnvironmentInfo
from openenv_sandbox.auto.discovery import get_discovery as get_discovery
from openenv_sandbox.auto.discovery import is_hub_name as _is_hub_url
from openenv_sandbox.auto.discovery import normalize as _normalize_env_name
from openenv_sandbox.auto.discovery import reset_discovery as reset_discovery

__all__ = [
    "EnvironmentDiscovery",
    "EnvironmentInfo",
    "_is_hub_url",
    "_normalize_env_name",
    "get_discovery",
    "reset_discovery",
]
