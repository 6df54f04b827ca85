"""Action classes of environments by name."""

from openenv_sandbox.auto.classes import AutoAction as AutoAction

__all__ = ["AutoAction"]
