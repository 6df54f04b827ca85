"""Clients of environments by name."""

from openenv_sandbox.auto.classes import AutoEnv as AutoEnv

__all__ = ["AutoEnv"]
