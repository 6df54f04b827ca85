"""Building providers that are broken in one way, out of the fake one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_sandbox.capabilities import ExecCapabilities
from openenv_sandbox.testing.fake import FakeProvider, FakeSandbox

if TYPE_CHECKING:
    from openenv_sandbox.provider import Prepared, Sandbox, SandboxRef
    from openenv_sandbox.spec import SandboxSpec

NATIVE = ExecCapabilities(stdin_stream=True, user=False, kill=True)
"""Declares that everything works without core's wrapper: then the provider itself is seen."""


class BrokenProvider(FakeProvider):
    """The fake provider with sandboxes of another class."""

    sandbox_class: ClassVar[type[FakeSandbox]] = FakeSandbox

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        return self._broken(await super().create(prepared, spec, key=key))

    async def attach(self, ref: SandboxRef) -> Sandbox:
        return self._broken(await super().attach(ref))

    def _broken(self, sandbox: Sandbox) -> Sandbox:
        sandbox.__class__ = self.sandbox_class
        return sandbox


@dataclass(frozen=True)
class Broken:
    """One defect.

    Attributes:
        why: What is wrong.
        provider: The provider's class.
        sandbox: Its sandboxes' class.
        caps: Replaces fields of its capabilities.
        cloud: Arguments of the fake cloud.
        case: Further fields of the case.
        param: Values of the test's parameters.
    """

    why: str
    provider: type[BrokenProvider] = BrokenProvider
    sandbox: type[FakeSandbox] = FakeSandbox
    caps: dict[str, Any] = field(default_factory=dict)
    cloud: dict[str, Any] = field(default_factory=dict)
    case: dict[str, Any] = field(default_factory=dict)
    param: dict[str, Any] = field(default_factory=dict)
