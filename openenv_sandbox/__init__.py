"""Run an environment image on any sandbox backend and get back a connected client.

Names are resolved on first use: importing this package loads no web framework, no pydantic and no SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openenv_sandbox.capabilities import Capabilities as Capabilities
    from openenv_sandbox.capabilities import ExecCapabilities as ExecCapabilities
    from openenv_sandbox.errors import OpenEnvError as OpenEnvError
    from openenv_sandbox.provider import Endpoint as Endpoint
    from openenv_sandbox.provider import Sandbox as Sandbox
    from openenv_sandbox.provider import SandboxInfo as SandboxInfo
    from openenv_sandbox.provider import SandboxProvider as SandboxProvider
    from openenv_sandbox.provider import SandboxRef as SandboxRef
    from openenv_sandbox.registry import ProviderInfo as ProviderInfo
    from openenv_sandbox.registry import providers as providers
    from openenv_sandbox.spec import NetworkPolicy as NetworkPolicy
    from openenv_sandbox.spec import PortSpec as PortSpec
    from openenv_sandbox.spec import Resources as Resources
    from openenv_sandbox.spec import SandboxSpec as SandboxSpec
    from openenv_sandbox.spec import Timeouts as Timeouts

# name -> module; the block above says the same to type checkers, and a test holds the two together.
_HOMES = {
    "Capabilities": "capabilities",
    "ExecCapabilities": "capabilities",
    "OpenEnvError": "errors",
    "Endpoint": "provider",
    "Sandbox": "provider",
    "SandboxInfo": "provider",
    "SandboxProvider": "provider",
    "SandboxRef": "provider",
    "ProviderInfo": "registry",
    "providers": "registry",
    "NetworkPolicy": "spec",
    "PortSpec": "spec",
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
