"""A rollout function as trainers call it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from openenv_sandbox.harness.adapters import HarnessAdapter
    from openenv_sandbox.harness.types import (
        HarnessRolloutResult,
        HarnessRunLimits,
        ModelStep,
        ResourceSession,
        ResourceSessionFactory,
        VerifyResult,
    )


def resolve_env_reward(rollout: HarnessRolloutResult, verify: VerifyResult) -> float:
    """The reward of an episode that must have one.

    Raises:
        ValueError: There is none, which is not a reward of 0; or what `episode_reward` raises.
    """
    reward = episode_reward(rollout, verify)
    if reward is None:
        raise ValueError("the episode has no reward: neither its last tool result nor its verification gives one")
    return reward


def episode_reward(rollout: HarnessRolloutResult, verify: VerifyResult) -> float | None:
    """The reward of an episode: that of the last step and that of the verification, which must agree.

    Raises:
        ValueError: They differ.
    """
    step, judged = _step_reward(rollout), verify.env_reward
    if step is None or judged is None:
        found = step if judged is None else judged
        return None if found is None else float(found)
    if not math.isclose(step, judged):
        raise ValueError(f"the last tool result gives the reward {step:g} and the verification {judged:g}")
    return float(judged)


def _step_reward(rollout: HarnessRolloutResult) -> float | None:
    if not rollout.tool_trace:
        return None
    result = rollout.tool_trace[-1].result
    for place in (result.metadata, result.data):
        if isinstance(place, dict) and isinstance(place.get("reward"), (bool, int, float)):
            return float(place["reward"])
    return None


def build_harness_rollout_func(
    *,
    session_factory: ResourceSessionFactory,
    harness_adapter: HarnessAdapter,
    model_step_builder: Callable[[Any, ResourceSession], ModelStep],
    limits: HarnessRunLimits | None = None,
    reward_key: str = "env_reward",
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """A function ``f(prompts, trainer)`` that runs one episode for each prompt.

    Args:
        session_factory: Makes a session for each prompt, which is its task; it is closed whatever happens.
        harness_adapter: Runs it, white box.
        model_step_builder: Makes what asks the policy, of ``(trainer, session)``.
        limits: When an episode ends at the latest.
        reward_key: Name of the rewards in the result.

    Returns:
        The function. Its result has lists ``prompt_ids``, ``completion_ids``, ``logprobs``, the rewards, and
        ``verify_metrics``, one item for each prompt. It raises what an episode raises, and ValueError where one has no
        reward.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        columns = ("prompt_ids", "completion_ids", "logprobs", reward_key, "verify_metrics")
        output: dict[str, list[Any]] = {name: [] for name in columns}
        for prompt in prompts:
            session = session_factory.create(task=prompt)
            try:
                rollout = harness_adapter.run_white_box(model_step_builder(trainer, session), session, limits)
                verify = session.verify(rollout.messages)
                row = (
                    rollout.prompt_ids,
                    rollout.completion_ids,
                    rollout.logprobs,
                    resolve_env_reward(rollout, verify),
                    verify.metrics,
                )
            finally:
                session.close()
            for name, value in zip(columns, row, strict=True):
                output[name].append(value)
        return output

    return rollout_func
