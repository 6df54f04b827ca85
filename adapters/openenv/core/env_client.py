"""The client."""

from openenv_sandbox.client.base import ActT as ActT
from openenv_sandbox.client.base import EnvClient as EnvClient
from openenv_sandbox.client.base import ObsT as ObsT
from openenv_sandbox.client.base import StateT as StateT
from openenv_sandbox.client.result import StepResult as StepResult

__all__ = [
    "ActT",
    "EnvClient",
    "ObsT",
    "StateT",
    "StepResult",
]
