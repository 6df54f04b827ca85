"""Starting servers in containers."""

from openenv_adapters.containers.providers import ContainerProvider as ContainerProvider
from openenv_adapters.containers.providers import LocalDockerProvider as LocalDockerProvider
from openenv_adapters.containers.providers import RuntimeProvider as RuntimeProvider

__all__ = ["ContainerProvider", "LocalDockerProvider", "RuntimeProvider"]
