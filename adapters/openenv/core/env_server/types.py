"""Types of the server."""

from typing import TYPE_CHECKING

from openenv._lazy import lazy

if TYPE_CHECKING:
    from openenv_sandbox.models import Action as Action
    from openenv_sandbox.models import Observation as Observation
    from openenv_sandbox.models import State as State
    from openenv_sandbox.server.environment import EnvironmentMetadata as EnvironmentMetadata
    from openenv_sandbox.server.http import HealthResponse as HealthResponse
    from openenv_sandbox.server.rpc_types import CodeExecResult as CodeExecResult
    from openenv_sandbox.server.rpc_types import HealthStatus as HealthStatus
    from openenv_sandbox.server.rpc_types import WSErrorCode as WSErrorCode
    from openenv_sandbox.server.rpc_types import WSErrorResponse as WSErrorResponse
    from openenv_sandbox.server.tasks import SplitRequest as ListTasksRequest
    from openenv_sandbox.server.tasks import SplitRequest as NumTasksRequest
    from openenv_sandbox.server.tasks import TaskRangeRequest as GetTaskRangeRequest
    from openenv_sandbox.server.tasks import TaskRequest as GetTaskRequest
    from openenv_sandbox.server.types import ConcurrencyConfig as ConcurrencyConfig
    from openenv_sandbox.server.types import ResetRequest as ResetRequest
    from openenv_sandbox.server.types import ServerCapacityStatus as ServerCapacityStatus
    from openenv_sandbox.server.types import ServerMode as ServerMode
    from openenv_sandbox.server.types import SessionInfo as SessionInfo
    from openenv_sandbox.server.types import StepRequest as StepRequest

_HOMES = {
    "Action": "openenv_sandbox.models",
    "CodeExecResult": "openenv_sandbox.server.rpc_types",
    "ConcurrencyConfig": "openenv_sandbox.server.types",
    "EnvironmentMetadata": "openenv_sandbox.server.environment",
    "GetTaskRangeRequest": "openenv_sandbox.server.tasks:TaskRangeRequest",
    "GetTaskRequest": "openenv_sandbox.server.tasks:TaskRequest",
    "HealthResponse": "openenv_sandbox.server.http",
    "HealthStatus": "openenv_sandbox.server.rpc_types",
    "ListTasksRequest": "openenv_sandbox.server.tasks:SplitRequest",
    "NumTasksRequest": "openenv_sandbox.server.tasks:SplitRequest",
    "Observation": "openenv_sandbox.models",
    "ResetRequest": "openenv_sandbox.server.types",
    "ServerCapacityStatus": "openenv_sandbox.server.types",
    "ServerMode": "openenv_sandbox.server.types",
    "SessionInfo": "openenv_sandbox.server.types",
    "State": "openenv_sandbox.models",
    "StepRequest": "openenv_sandbox.server.types",
    "WSErrorCode": "openenv_sandbox.server.rpc_types",
    "WSErrorResponse": "openenv_sandbox.server.rpc_types",
}

__all__ = [
    "Action",
    "CodeExecResult",
    "ConcurrencyConfig",
    "EnvironmentMetadata",
    "GetTaskRangeRequest",
    "GetTaskRequest",
    "HealthResponse",
    "HealthStatus",
    "ListTasksRequest",
    "NumTasksRequest",
    "Observation",
    "ResetRequest",
    "ServerCapacityStatus",
    "ServerMode",
    "SessionInfo",
    "State",
    "StepRequest",
    "WSErrorCode",
    "WSErrorResponse",
]

if not TYPE_CHECKING:  # a name that is not there stays an error to type checkers
    __getattr__, __dir__ = lazy(__name__, _HOMES)
