"""Environments by name: those that are installed, and those of the hub for whoever vouches for them."""

from __future__ import annotations

from openenv_sandbox.auto.classes import AutoAction, AutoEnv
from openenv_sandbox.auto.discovery import EnvironmentDiscovery, EnvironmentInfo, get_discovery, reset_discovery

__all__ = ["AutoAction", "AutoEnv", "EnvironmentDiscovery", "EnvironmentInfo", "get_discovery", "reset_discovery"]
