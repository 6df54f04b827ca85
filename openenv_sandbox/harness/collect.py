"""Collecting episodes: many rollouts into one folder, going on where a run was stopped."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox import portal
from openenv_sandbox.harness.records import EpisodeRecord, RolloutSerializer
from openenv_sandbox.harness.rollout import episode_reward
from openenv_sandbox.harness.types import HarnessRunLimits, ModelStepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from openenv_sandbox.harness.adapters import HarnessAdapter
    from openenv_sandbox.harness.types import Message, ModelStep, ResourceSessionFactory
    from openenv_sandbox.llm import LLMClient
    from openenv_sandbox.models import Tool

__all__ = ["CollectResult", "CollectRunner", "EpisodeRecord", "RolloutSerializer", "build_model_step"]

logger = logging.getLogger("openenv.harness")


@dataclass
class CollectResult:
    """What a run collected.

    Attributes:
        num_collected: Episodes written by this run.
        num_skipped: Episodes that were there already.
        num_dropped: Episodes that ``should_keep`` refused.
        num_failed: Episodes that raised; they are not written and are tried again when the run is resumed.
        episode_ids: Names of those written.
        avg_reward: Mean of their rewards; None when none has one.
        success_rate: Share of them with a positive reward; None when none has one.
    """

    num_collected: int = 0
    num_skipped: int = 0
    num_dropped: int = 0
    num_failed: int = 0
    episode_ids: list[str] = field(default_factory=list)
    avg_reward: float | None = None
    success_rate: float | None = None


class CollectRunner:
    """Runs episodes one after the other and keeps them.

    Args:
        session_factory: Makes a session for each episode; it is closed whatever happens.
        harness_adapter: Runs it, white box.
        serializer: Keeps it.
        tasks: One for each episode, also for those skipped; None gives every episode the task None.
        limits: When an episode ends at the latest.
    """

    def __init__(
        self,
        *,
        session_factory: ResourceSessionFactory,
        harness_adapter: HarnessAdapter,
        serializer: RolloutSerializer,
        tasks: Iterable[Any] | None = None,
        limits: HarnessRunLimits | None = None,
    ) -> None:
        self.session_factory = session_factory
        self.harness_adapter = harness_adapter
        self.serializer = serializer
        self.tasks = tasks
        self.limits = limits or HarnessRunLimits()

    def run(
        self,
        *,
        model_step: ModelStep,
        num_episodes: int,
        episode_id_prefix: str = "ep",
        resume: bool = True,
        should_keep: Callable[[EpisodeRecord], bool] | None = None,
        on_episode: Callable[[str, str], object] | None = None,
    ) -> CollectResult:
        """Collect.

        Args:
            model_step: Asks the policy.
            num_episodes: How many there shall be in the end.
            episode_id_prefix: Episodes are named ``<prefix>-000000`` and so on.
            resume: Skip those that are there already.
            should_keep: Whether an episode is written; by default all are.
            on_episode: Told each episode's name and what became of it: ``collected``, ``skipped``, ``dropped``, or
                ``failed`` with the reason; without it, failures are logged.

        Raises:
            FileError: The file of an earlier run has a torn line.
            ValueError: There are fewer tasks than episodes.
        """
        there = self.serializer.collected_episode_ids() if resume else set()
        tasks = None if self.tasks is None else iter(self.tasks)
        result = CollectResult()
        tell = on_episode or _log
        rewards: list[float] = []
        for index in range(num_episodes):
            try:
                task = None if tasks is None else next(tasks)
            except StopIteration:
                raise ValueError(f"{num_episodes} episodes need as many tasks; there are {index}") from None
            name = f"{episode_id_prefix}-{index:06d}"
            if name in there:
                result.num_skipped += 1
                tell(name, "skipped")
                continue
            try:
                record = self._episode(name, task, model_step)
            except Exception as error:
                result.num_failed += 1
                tell(name, f"failed: {type(error).__name__}: {error}")
                continue
            if should_keep is not None and not should_keep(record):
                result.num_dropped += 1
                tell(name, "dropped")
                continue
            self.serializer.write_episode(record)
            result.num_collected += 1
            result.episode_ids.append(name)
            tell(name, "collected")
            if record.reward is not None:
                rewards.append(record.reward)
        if rewards:
            result.avg_reward = sum(rewards) / len(rewards)
            result.success_rate = sum(reward > 0 for reward in rewards) / len(rewards)
        return result

    def _episode(self, name: str, task: Any, model_step: ModelStep) -> EpisodeRecord:
        session = self.session_factory.create(task=task, episode_id=name)
        try:
            rollout = self.harness_adapter.run_white_box(model_step, session, self.limits)
            verify = session.verify(rollout.messages)
        finally:
            session.close()
        reward = episode_reward(rollout, verify)
        return EpisodeRecord.from_rollout(episode_id=name, rollout=rollout, verify=verify, task=task, reward=reward)


def _log(name: str, outcome: str) -> None:
    if outcome.startswith("failed"):
        logger.warning("episode %s %s; it is not written", name, outcome)


def build_model_step(llm_client: LLMClient, *, system_prompt: str | None = None) -> ModelStep:
    """The blocking face of a client of a language model.

    Args:
        llm_client: Asked with the conversation and the tools.
        system_prompt: Put before conversations that have none.
    """

    def model_step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        if system_prompt and not any(message["role"] == "system" for message in messages):
            messages = [{"role": "system", "content": system_prompt}, *messages]
        listed = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in tools
        ]

        async def ask() -> ModelStepResult:
            return ModelStepResult(response=await llm_client.complete_with_tools(messages, listed, **sampling))

        return portal.run_sync(ask)

    return model_step
