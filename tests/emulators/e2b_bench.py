"""What the tests of E2B and Novita share: both vendors, emulated, as one parametrised fixture."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulators.engine import Engine, Front
from tests.emulators.proof import Emulated, EmulatorFixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openenv_sandbox.provider import SandboxProvider
    from openenv_sandbox.spec import SandboxSpec
    from tests.emulators.proof import Stage

SDKS = {"e2b": "e2b", "novita": "novita_sandbox"}


def emulate(name: str, engine: Engine, **more: Any) -> Iterator[Emulated]:
    """One of the two, with its emulator."""
    face_module = importlib.import_module(f"tests.emulators.faces.{name}_face")
    provider_module = importlib.import_module(f"openenv_providers.{name}")
    face = getattr(face_module, f"{name.capitalize()}Face")(engine)
    with Front(engine, face) as front:
        prefix = name.upper()
        env = {f"{prefix}_API_KEY": face.key, f"{prefix}_API_URL": front.url, f"{prefix}_SANDBOX_URL": front.url}
        yield Emulated(
            engine,
            front,
            face,
            getattr(provider_module, f"{name.capitalize()}Provider"),
            options={"gateway": front.url},
            env=env,
            wrong_auth={f"{prefix}_API_KEY": "wrong-key-0123456789abcdef"},
            expire="a traffic token lives as long as its sandbox",
            **more,
        )


class Clouds(EmulatorFixtures):
    """Each test runs on both."""

    @pytest.fixture(params=sorted(SDKS))
    def emulated(self, engine: Engine, request: pytest.FixtureRequest) -> Iterator[Emulated]:
        pytest.importorskip(SDKS[request.param])
        yield from emulate(request.param, engine)


def spec_of(stage: Stage, image: str | None = None, **fields: Any) -> SandboxSpec:
    """A spec as the launcher completes it."""
    from openenv_sandbox.spec import SandboxSpec

    labels = {"oe-install": "0123456789abcdef", "oe-run": "run12345", "oe-expires": "4102444800"}
    return SandboxSpec(image=image or stage.emulated.light, labels={**labels, **fields.pop("labels", {})}, **fields)


async def prepare(provider: SandboxProvider, spec: SandboxSpec, log: list[str] | None = None) -> Any:
    """What ``provider`` boots for it."""
    import asyncio

    from openenv_sandbox import capcheck
    from openenv_sandbox.image import parse

    image = await asyncio.to_thread(parse, spec.image)
    spec = capcheck.check(spec, image, provider.effective_capabilities(), provider=provider.name, serve=False)
    return await provider.prepare(provider.fit(spec, image), image, on_log=(log if log is not None else []).append)


async def made(provider: SandboxProvider, spec: SandboxSpec, key: str = "oe-12345678-abcdefabcdef") -> Any:
    """A sandbox of it."""
    return await provider.create(await prepare(provider, spec), spec, key=key)
