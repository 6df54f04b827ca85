"""Rollouts: a policy, an episode offered as tools, and what comes of them."""

from __future__ import annotations

from openenv_sandbox.harness.adapters import CLIHarnessAdapter, HarnessAdapter, MCPHarnessAdapter
from openenv_sandbox.harness.bridge import SessionMCPBridge
from openenv_sandbox.harness.rollout import build_harness_rollout_func, resolve_env_reward
from openenv_sandbox.harness.sessions import RESERVED_TOOL_NAMES, StepEnvSessionAdapter
from openenv_sandbox.harness.training import (
    LoopOwningSession,
    TrainableSession,
    TrainingTrace,
    TrainingTurn,
    training_sampling,
)
from openenv_sandbox.harness.types import (
    HarnessRolloutResult,
    HarnessRunLimits,
    Message,
    ModelStep,
    ModelStepResult,
    ResourceSession,
    ResourceSessionFactory,
    RolloutEvent,
    ToolResult,
    ToolTraceEntry,
    TraceEntry,
    VerifyResult,
)

__all__ = [
    "RESERVED_TOOL_NAMES",
    "CLIHarnessAdapter",
    "HarnessAdapter",
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "LoopOwningSession",
    "MCPHarnessAdapter",
    "Message",
    "ModelStep",
    "ModelStepResult",
    "ResourceSession",
    "ResourceSessionFactory",
    "RolloutEvent",
    "SessionMCPBridge",
    "StepEnvSessionAdapter",
    "ToolResult",
    "ToolTraceEntry",
    "TraceEntry",
    "TrainableSession",
    "TrainingTrace",
    "TrainingTurn",
    "VerifyResult",
    "build_harness_rollout_func",
    "resolve_env_reward",
    "training_sampling",
]
