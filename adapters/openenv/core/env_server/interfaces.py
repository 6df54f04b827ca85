"""What environments implement."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv_sandbox.models import Action as Action
    from openenv_sandbox.models import Observation as Observation
    from openenv_sandbox.models import State as State
    from openenv_sandbox.server.environment import ActT as ActT
    from openenv_sandbox.server.environment import Environment as Environment
    from openenv_sandbox.server.environment import EnvironmentMetadata as EnvironmentMetadata
    from openenv_sandbox.server.environment import ObsT as ObsT
    from openenv_sandbox.server.environment import StateT as StateT
    from openenv_sandbox.server.environment import Transform as Transform
    from openenv_sandbox.server.protocols import Message as Message
    from openenv_sandbox.server.protocols import ModelTokenizer as ModelTokenizer
    from openenv_sandbox.server.tasks import TaskProvider as TaskProvider

_HOMES = {
    "ActT": "openenv_sandbox.server.environment",
    "Action": "openenv_sandbox.models",
    "Environment": "openenv_sandbox.server.environment",
    "EnvironmentMetadata": "openenv_sandbox.server.environment",
    "Message": "openenv_sandbox.server.protocols",
    "ModelTokenizer": "openenv_sandbox.server.protocols",
    "ObsT": "openenv_sandbox.server.environment",
    "Observation": "openenv_sandbox.models",
    "State": "openenv_sandbox.models",
    "StateT": "openenv_sandbox.server.environment",
    "TaskProvider": "openenv_sandbox.server.tasks",
    "Transform": "openenv_sandbox.server.environment",
}

__all__ = [
    "ActT",
    "Action",
    "Environment",
    "EnvironmentMetadata",
    "Message",
    "ModelTokenizer",
    "ObsT",
    "Observation",
    "State",
    "StateT",
    "TaskProvider",
    "Transform",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
