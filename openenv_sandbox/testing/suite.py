"""The contract as tests: subclass `ProviderContract`, give it one fixture, and pytest says what the backend keeps.

    class TestMyBackend(ProviderContract):
        @pytest.fixture
        def provider_case(self):
            return ProviderCase(MyProvider, image="registry.example/echo-env:1")

What a backend does not declare is skipped and listed as such; what the case offers no hook for is listed apart from it.
"""

from __future__ import annotations

from openenv_sandbox.testing.case import DirectOwner, Fault, FaultHook, ProviderCase
from openenv_sandbox.testing.suite_exec import ExecContract
from openenv_sandbox.testing.suite_faults import FaultContract
from openenv_sandbox.testing.suite_files import FilesContract
from openenv_sandbox.testing.suite_launch import LaunchContract
from openenv_sandbox.testing.suite_lifecycle import LifecycleContract
from openenv_sandbox.testing.suite_process import ProcessContract
from openenv_sandbox.testing.suite_raw import RawContract
from openenv_sandbox.testing.suite_server import ServerContract
from openenv_sandbox.testing.suite_spec import SpecContract

__all__ = ["DirectOwner", "Fault", "FaultHook", "ProviderCase", "ProviderContract"]


class ProviderContract(
    RawContract,
    ExecContract,
    ProcessContract,
    FilesContract,
    LifecycleContract,
    SpecContract,
    ServerContract,
    FaultContract,
    LaunchContract,
):
    """Everything a backend promises. Needs a fixture ``provider_case`` that returns a `ProviderCase`."""
