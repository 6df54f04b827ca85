"""Sandboxes of daytona. New code uses `openenv_sandbox.launch`."""

from openenv_adapters.containers.daytona import DaytonaProvider as DaytonaProvider

__all__ = ["DaytonaProvider"]
