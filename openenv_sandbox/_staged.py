"""The former name of `openenv_sandbox.staging`."""

from openenv_sandbox.staging import staged

__all__ = ["staged"]
