"""Collecting rollouts."""

from openenv_sandbox.harness.collect import CollectResult as CollectResult
from openenv_sandbox.harness.collect import CollectRunner as CollectRunner
from openenv_sandbox.harness.collect import EpisodeRecord as EpisodeRecord
from openenv_sandbox.harness.collect import RolloutSerializer as RolloutSerializer
from openenv_sandbox.harness.collect import build_model_step as build_model_step
from openenv_sandbox.harness.dataset import README_FILENAME as README_FILENAME
from openenv_sandbox.harness.dataset import build_dataset_readme as build_dataset_readme
from openenv_sandbox.harness.dataset import push_to_hf_hub as push_to_hf_hub
from openenv_sandbox.harness.records import METADATA_FILENAME as METADATA_FILENAME
from openenv_sandbox.harness.records import RESULTS_FILENAME as RESULTS_FILENAME

__all__ = [
    "METADATA_FILENAME",
    "README_FILENAME",
    "RESULTS_FILENAME",
    "CollectResult",
    "CollectRunner",
    "EpisodeRecord",
    "RolloutSerializer",
    "build_dataset_readme",
    "build_model_step",
    "push_to_hf_hub",
]
