"""The contract suite against the vendors' own services; see docs/live.md for what it costs and leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from openenv_sandbox.errors import OpenEnvError
from openenv_sandbox.testing.suite import ProviderCase, ProviderContract
from tests.live import cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.provider import SandboxProvider

ECHO = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
DYING = {"command": ("/bin/sh", "-c", "echo dying words; exit 17")}


@pytest.fixture(scope="class")
def swept(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test left is deleted at the end, and fails the run."""
    cls: Any = request.cls
    cls.keys = set()
    yield
    left = asyncio.run(sweep(cases.provider(cls.backend), cases.options(cls.backend), cls.keys))
    assert left == [], "left by tests, and deleted now"


class LiveContract(ProviderContract):
    """One backend; afterwards nothing of this run is left."""

    backend: ClassVar[str] = ""
    keys: ClassVar[set[str]] = set()
    pytestmark: ClassVar[Any] = [pytest.mark.anyio, pytest.mark.live, pytest.mark.usefixtures("swept")]

    @pytest.fixture
    def provider_case(self) -> ProviderCase:
        name = self.backend
        return ProviderCase(
            remembering(cases.provider(name), type(self).keys),
            image=cases.IMAGE or str(cases.ROOT / "envs" / "echo_env"),
            options=cases.options(name),
            spec=cases.spec(name),
            action=ECHO,
            dying=DYING,
            gone_s=90.0,
            child=cases.target(name),
        )


def remembering(base: type[SandboxProvider], keys: set[str]) -> type[SandboxProvider]:
    """The provider, whose keys are kept for the sweep."""

    async def create(self: Any, prepared: Any, spec: Any, *, key: str) -> Any:
        keys.add(key)
        return await base.create(self, prepared, spec, key=key)

    return type(base.__name__, (base,), {"create": create})


async def sweep(cls: type[SandboxProvider], options: dict[str, Any], keys: set[str]) -> list[str]:
    """Delete what still exists under these keys; returns what that was."""
    provider = await asyncio.to_thread(cls, options)
    left = []
    try:
        for key in sorted(keys):
            try:
                refs = await provider.find(key)
            except OpenEnvError as error:
                left.append(f"{key}: could not be looked for: {error}")
                continue
            for ref in refs:
                left.append(str(ref))
                await provider.delete(ref)
    finally:
        await provider.aclose()
    return left


class TestLiveAca(LiveContract):
    backend = "aca"


class TestLiveDaytona(LiveContract):
    backend = "daytona"


class TestLiveE2b(LiveContract):
    backend = "e2b"


class TestLiveIslo(LiveContract):
    backend = "islo"


class TestLiveModal(LiveContract):
    backend = "modal"


class TestLiveNovita(LiveContract):
    backend = "novita"


class TestLiveRunloop(LiveContract):
    backend = "runloop"
