"""For tests: the contract suite, a fake provider, faults, an environment's server.

`openenv_sandbox.testing.suite.ProviderContract` is what a backend's author subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openenv_sandbox.testing.case import ProviderCase as ProviderCase
    from openenv_sandbox.testing.fake import FakeClock as FakeClock
    from openenv_sandbox.testing.fake import FakeCloud as FakeCloud
    from openenv_sandbox.testing.fake import FakeProvider as FakeProvider
    from openenv_sandbox.testing.served import serve_app as serve_app
    from openenv_sandbox.testing.suite import ProviderContract as ProviderContract

# pytest is needed only where the suite is used, so names are resolved on first use.
_HOMES = {
    "FakeClock": "fake",
    "FakeCloud": "fake",
    "FakeProvider": "fake",
    "ProviderCase": "case",
    "ProviderContract": "suite",
    "serve_app": "served",
}

__all__ = ["FakeClock", "FakeCloud", "FakeProvider", "ProviderCase", "ProviderContract", "serve_app"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
