"""Run an environment image on any sandbox backend and get back a connected client.

Names are resolved on first use: importing this package loads no web framework, no pydantic and no SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openenv_sandbox.capabilities import Capabilities as Capabilities
    from openenv_sandbox.capabilities import ExecCapabilities as ExecCapabilities
    from openenv_sandbox.capabilities import Sizes as Sizes
    from openenv_sandbox.capabilities import Span as Span
    from openenv_sandbox.client import EnvClient as EnvClient
    from openenv_sandbox.client import GenericAction as GenericAction
    from openenv_sandbox.client import GenericEnvClient as GenericEnvClient
    from openenv_sandbox.client import MCPToolClient as MCPToolClient
    from openenv_sandbox.client import StepResult as StepResult
    from openenv_sandbox.client import SyncEnvClient as SyncEnvClient
    from openenv_sandbox.errors import ActionInvalid as ActionInvalid
    from openenv_sandbox.errors import AuthError as AuthError
    from openenv_sandbox.errors import BrokenExtraError as BrokenExtraError
    from openenv_sandbox.errors import BuildError as BuildError
    from openenv_sandbox.errors import CapabilityError as CapabilityError
    from openenv_sandbox.errors import CapacityError as CapacityError
    from openenv_sandbox.errors import CircuitOpen as CircuitOpen
    from openenv_sandbox.errors import CleanupError as CleanupError
    from openenv_sandbox.errors import ClientError as ClientError
    from openenv_sandbox.errors import ConfigError as ConfigError
    from openenv_sandbox.errors import ConnectError as ConnectError
    from openenv_sandbox.errors import CreateTimeout as CreateTimeout
    from openenv_sandbox.errors import EndpointError as EndpointError
    from openenv_sandbox.errors import EnvironmentError_ as EnvironmentError_
    from openenv_sandbox.errors import ExecError as ExecError
    from openenv_sandbox.errors import ExecTimeout as ExecTimeout
    from openenv_sandbox.errors import ExecutionError as ExecutionError
    from openenv_sandbox.errors import FactoryError as FactoryError
    from openenv_sandbox.errors import FileError as FileError
    from openenv_sandbox.errors import GradingError as GradingError
    from openenv_sandbox.errors import ImageError as ImageError
    from openenv_sandbox.errors import JournalError as JournalError
    from openenv_sandbox.errors import MessageTooLarge as MessageTooLarge
    from openenv_sandbox.errors import MissingExtraError as MissingExtraError
    from openenv_sandbox.errors import OpenEnvError as OpenEnvError
    from openenv_sandbox.errors import ProtocolError as ProtocolError
    from openenv_sandbox.errors import ProviderError as ProviderError
    from openenv_sandbox.errors import ProviderUnavailable as ProviderUnavailable
    from openenv_sandbox.errors import QuotaExceeded as QuotaExceeded
    from openenv_sandbox.errors import RateLimited as RateLimited
    from openenv_sandbox.errors import ReadyTimeout as ReadyTimeout
    from openenv_sandbox.errors import SandboxError as SandboxError
    from openenv_sandbox.errors import SandboxGone as SandboxGone
    from openenv_sandbox.errors import SerializationError as SerializationError
    from openenv_sandbox.errors import ServerExited as ServerExited
    from openenv_sandbox.errors import SessionLost as SessionLost
    from openenv_sandbox.errors import StepTimeout as StepTimeout
    from openenv_sandbox.errors import TrustError as TrustError
    from openenv_sandbox.errors import UnknownProvider as UnknownProvider
    from openenv_sandbox.errors import UsageError as UsageError
    from openenv_sandbox.events import Event as Event
    from openenv_sandbox.launcher import attach as attach
    from openenv_sandbox.launcher import launch as launch
    from openenv_sandbox.launcher import live_refs as live_refs
    from openenv_sandbox.launcher import sandbox as sandbox
    from openenv_sandbox.models import Action as Action
    from openenv_sandbox.models import CallToolAction as CallToolAction
    from openenv_sandbox.models import CallToolObservation as CallToolObservation
    from openenv_sandbox.models import ListToolsAction as ListToolsAction
    from openenv_sandbox.models import ListToolsObservation as ListToolsObservation
    from openenv_sandbox.models import Observation as Observation
    from openenv_sandbox.models import State as State
    from openenv_sandbox.options import ProviderOptions as ProviderOptions
    from openenv_sandbox.options import trusted as trusted
    from openenv_sandbox.process import Process as Process
    from openenv_sandbox.provider import Check as Check
    from openenv_sandbox.provider import Endpoint as Endpoint
    from openenv_sandbox.provider import Exit as Exit
    from openenv_sandbox.provider import Image as Image
    from openenv_sandbox.provider import ImageConfig as ImageConfig
    from openenv_sandbox.provider import LogSink as LogSink
    from openenv_sandbox.provider import OutputSink as OutputSink
    from openenv_sandbox.provider import Prepared as Prepared
    from openenv_sandbox.provider import RawResult as RawResult
    from openenv_sandbox.provider import Sandbox as Sandbox
    from openenv_sandbox.provider import SandboxInfo as SandboxInfo
    from openenv_sandbox.provider import SandboxProvider as SandboxProvider
    from openenv_sandbox.provider import SandboxRef as SandboxRef
    from openenv_sandbox.provider import Status as Status
    from openenv_sandbox.provider import Verified as Verified
    from openenv_sandbox.registry import ProviderInfo as ProviderInfo
    from openenv_sandbox.registry import providers as providers
    from openenv_sandbox.running import RunningSandbox as RunningSandbox
    from openenv_sandbox.running import exec_limits as exec_limits
    from openenv_sandbox.server import Environment as Environment
    from openenv_sandbox.server import create_app as create_app
    from openenv_sandbox.shell import ExecResult as ExecResult
    from openenv_sandbox.spec import NetworkPolicy as NetworkPolicy
    from openenv_sandbox.spec import PortSpec as PortSpec
    from openenv_sandbox.spec import RegistryAuth as RegistryAuth
    from openenv_sandbox.spec import Resources as Resources
    from openenv_sandbox.spec import SandboxSpec as SandboxSpec
    from openenv_sandbox.spec import Timeouts as Timeouts

# name -> module; the block above says the same to type checkers, and a test holds the two together.
_HOMES = {
    "Capabilities": "capabilities",
    "ExecCapabilities": "capabilities",
    "Sizes": "capabilities",
    "Span": "capabilities",
    "EnvClient": "client",
    "GenericAction": "client",
    "GenericEnvClient": "client",
    "MCPToolClient": "client",
    "StepResult": "client",
    "SyncEnvClient": "client",
    "ActionInvalid": "errors",
    "AuthError": "errors",
    "BrokenExtraError": "errors",
    "BuildError": "errors",
    "CapabilityError": "errors",
    "CapacityError": "errors",
    "CircuitOpen": "errors",
    "CleanupError": "errors",
    "ClientError": "errors",
    "ConfigError": "errors",
    "ConnectError": "errors",
    "CreateTimeout": "errors",
    "EndpointError": "errors",
    "EnvironmentError_": "errors",
    "ExecError": "errors",
    "ExecTimeout": "errors",
    "ExecutionError": "errors",
    "FactoryError": "errors",
    "FileError": "errors",
    "GradingError": "errors",
    "ImageError": "errors",
    "JournalError": "errors",
    "MessageTooLarge": "errors",
    "MissingExtraError": "errors",
    "OpenEnvError": "errors",
    "ProtocolError": "errors",
    "ProviderError": "errors",
    "ProviderUnavailable": "errors",
    "QuotaExceeded": "errors",
    "RateLimited": "errors",
    "ReadyTimeout": "errors",
    "SandboxError": "errors",
    "SandboxGone": "errors",
    "SerializationError": "errors",
    "ServerExited": "errors",
    "SessionLost": "errors",
    "StepTimeout": "errors",
    "TrustError": "errors",
    "UnknownProvider": "errors",
    "UsageError": "errors",
    "Event": "events",
    "attach": "launcher",
    "launch": "launcher",
    "live_refs": "launcher",
    "sandbox": "launcher",
    "Action": "models",
    "CallToolAction": "models",
    "CallToolObservation": "models",
    "ListToolsAction": "models",
    "ListToolsObservation": "models",
    "Observation": "models",
    "State": "models",
    "ProviderOptions": "options",
    "trusted": "options",
    "Process": "process",
    "Check": "provider",
    "Endpoint": "provider",
    "Exit": "provider",
    "Image": "provider",
    "ImageConfig": "provider",
    "LogSink": "provider",
    "OutputSink": "provider",
    "Prepared": "provider",
    "RawResult": "provider",
    "Sandbox": "provider",
    "SandboxInfo": "provider",
    "SandboxProvider": "provider",
    "SandboxRef": "provider",
    "Status": "provider",
    "Verified": "provider",
    "ProviderInfo": "registry",
    "providers": "registry",
    "RunningSandbox": "running",
    "exec_limits": "running",
    "Environment": "server",
    "create_app": "server",
    "ExecResult": "shell",
    "NetworkPolicy": "spec",
    "PortSpec": "spec",
    "RegistryAuth": "spec",
    "Resources": "spec",
    "SandboxSpec": "spec",
    "Timeouts": "spec",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("openenv")
    elif name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
