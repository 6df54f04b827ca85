"""What an environment says about itself on its page."""

from openenv_sandbox.server.metadata import load_environment_metadata as load_environment_metadata

__all__ = [
    "load_environment_metadata",
]
