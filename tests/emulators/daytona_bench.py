"""An emulated Daytona for one test, and sandboxes on it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from openenv_sandbox import image as images
from openenv_sandbox.spec import SandboxSpec
from tests.emulators.faces.daytona_api import KEY, DaytonaFace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from openenv_providers.daytona import DaytonaProvider

    from tests.emulators.engine import Engine

LABELS = {"oe-install": "abc123", "oe-run": "r", "oe-expires": "4102444800"}


@contextlib.contextmanager
def emulated(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaytonaFace]:
    """The vendor's variables lead to it."""
    from tests.emulators.engine import Front

    face = DaytonaFace(engine)
    with Front(engine, face) as front:
        monkeypatch.setenv("DAYTONA_API_URL", f"{front.url}/api")
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)
        for name in ("DAYTONA_TARGET", "DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID"):
            monkeypatch.delenv(name, raising=False)
        yield face


async def made(provider: DaytonaProvider, face: DaytonaFace, key: str = "oe-aaaaaaaa-000000000001", **kw: Any) -> Any:
    """A sandbox of the light image."""
    spec = SandboxSpec(image=face.engine.image("light"), **kw)
    spec = spec.model_copy(update={"labels": {**LABELS, **spec.labels, "oe-key": key}})
    spec = provider.fit(spec, await asyncio.to_thread(images.parse, spec.image))
    prepared = await prepare(provider, spec)
    return await provider.create(prepared, spec, key=key)


async def prepare(provider: DaytonaProvider, spec: SandboxSpec, log: list[str] | None = None) -> Any:
    image = await asyncio.to_thread(images.parse, spec.image)
    said = log if log is not None else []
    return await provider.prepare(spec, image, on_log=said.append)
