"""Starting servers from an environment's folder."""

from openenv_adapters.containers.uv import UVProvider as UVProvider

__all__ = ["UVProvider"]
