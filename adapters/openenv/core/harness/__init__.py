"""Rollouts."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv_sandbox.harness import RESERVED_TOOL_NAMES as RESERVED_TOOL_NAMES
    from openenv_sandbox.harness import CLIHarnessAdapter as CLIHarnessAdapter
    from openenv_sandbox.harness import HarnessAdapter as HarnessAdapter
    from openenv_sandbox.harness import HarnessRolloutResult as HarnessRolloutResult
    from openenv_sandbox.harness import HarnessRunLimits as HarnessRunLimits
    from openenv_sandbox.harness import LoopOwningSession as LoopOwningSession
    from openenv_sandbox.harness import MCPHarnessAdapter as MCPHarnessAdapter
    from openenv_sandbox.harness import Message as Message
    from openenv_sandbox.harness import ModelStep as ModelStep
    from openenv_sandbox.harness import ModelStepResult as ModelStepResult
    from openenv_sandbox.harness import ResourceSession as ResourceSession
    from openenv_sandbox.harness import ResourceSessionFactory as ResourceSessionFactory
    from openenv_sandbox.harness import RolloutEvent as RolloutEvent
    from openenv_sandbox.harness import SessionMCPBridge as SessionMCPBridge
    from openenv_sandbox.harness import StepEnvSessionAdapter as StepEnvSessionAdapter
    from openenv_sandbox.harness import ToolResult as ToolResult
    from openenv_sandbox.harness import ToolTraceEntry as ToolTraceEntry
    from openenv_sandbox.harness import TraceEntry as TraceEntry
    from openenv_sandbox.harness import TrainableSession as TrainableSession
    from openenv_sandbox.harness import TrainingTrace as TrainingTrace
    from openenv_sandbox.harness import TrainingTurn as TrainingTurn
    from openenv_sandbox.harness import VerifyResult as VerifyResult
    from openenv_sandbox.harness import build_harness_rollout_func as build_harness_rollout_func
    from openenv_sandbox.harness import resolve_env_reward as _resolve_env_reward

_HOMES = {
    "CLIHarnessAdapter": "openenv_sandbox.harness",
    "HarnessAdapter": "openenv_sandbox.harness",
    "HarnessRolloutResult": "openenv_sandbox.harness",
    "HarnessRunLimits": "openenv_sandbox.harness",
    "LoopOwningSession": "openenv_sandbox.harness",
    "MCPHarnessAdapter": "openenv_sandbox.harness",
    "Message": "openenv_sandbox.harness",
    "ModelStep": "openenv_sandbox.harness",
    "ModelStepResult": "openenv_sandbox.harness",
    "RESERVED_TOOL_NAMES": "openenv_sandbox.harness",
    "ResourceSession": "openenv_sandbox.harness",
    "ResourceSessionFactory": "openenv_sandbox.harness",
    "RolloutEvent": "openenv_sandbox.harness",
    "SessionMCPBridge": "openenv_sandbox.harness",
    "StepEnvSessionAdapter": "openenv_sandbox.harness",
    "ToolResult": "openenv_sandbox.harness",
    "ToolTraceEntry": "openenv_sandbox.harness",
    "TraceEntry": "openenv_sandbox.harness",
    "TrainableSession": "openenv_sandbox.harness",
    "TrainingTrace": "openenv_sandbox.harness",
    "TrainingTurn": "openenv_sandbox.harness",
    "VerifyResult": "openenv_sandbox.harness",
    "_resolve_env_reward": "openenv_sandbox.harness:resolve_env_reward",
    "build_harness_rollout_func": "openenv_sandbox.harness",
}

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
    "_resolve_env_reward",
    "build_harness_rollout_func",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
