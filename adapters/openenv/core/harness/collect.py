"""Collecting rollouts."""

from openenv_sandbox.harness.collect import CollectResult as CollectResult
from openenv_sandbox.harness.collect import CollectRunner as CollectRunner
from openenv_sandbox.harness.collect import EpisodeRecord as EpisodeRecord
from openenv_sandbox.harness.collect import RolloutSerializer as RolloutSerializer
from openenv_sandbox.harness.collect import build_model_step as build_model_step

__all__ = [
    "CollectResult",
    "CollectRunner",
    "EpisodeRecord",
    "RolloutSerializer",
    "build_model_step",
]
