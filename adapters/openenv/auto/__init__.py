"""Environments by name."""

from openenv.auto.auto_action import AutoAction as AutoAction
from openenv.auto.auto_env import AutoEnv as AutoEnv

__all__ = ["AutoAction", "AutoEnv"]
