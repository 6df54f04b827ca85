"""Starting servers in containers, as older code does it. New code uses `openenv_sandbox.launch`."""

from openenv_adapters.containers.providers import ContainerProvider as ContainerProvider
from openenv_adapters.containers.providers import LocalDockerProvider as LocalDockerProvider
from openenv_adapters.containers.providers import RuntimeProvider as RuntimeProvider
from openenv_adapters.containers.uv import UVProvider as UVProvider

__all__ = ["ContainerProvider", "LocalDockerProvider", "RuntimeProvider", "UVProvider"]
