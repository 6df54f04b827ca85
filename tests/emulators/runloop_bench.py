"""An emulated Runloop for one test, and devboxes on it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from openenv_sandbox import image as images
from openenv_sandbox.spec import SandboxSpec
from tests.emulators.faces.runloop_api import KEY, RunloopFace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from openenv_providers.runloop import RunloopProvider

    from tests.emulators.engine import Engine

LABELS = {"oe-install": "abc123", "oe-run": "r", "oe-expires": "4102444800"}
OUR_KEY = "oe-aaaaaaaa-000000000001"


@contextlib.contextmanager
def emulated(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunloopFace]:
    """The vendor's variables lead to it."""
    from tests.emulators.engine import Front

    face = RunloopFace(engine)
    with Front(engine, face) as front:
        monkeypatch.setenv("RUNLOOP_BASE_URL", front.url)
        monkeypatch.setenv("RUNLOOP_API_KEY", KEY)
        yield face


async def prepare(provider: RunloopProvider, spec: SandboxSpec, log: list[str] | None = None) -> Any:
    """What it boots."""
    image = await asyncio.to_thread(images.parse, spec.image)
    return await provider.prepare(spec, image, on_log=(log if log is not None else []).append)


def asked(face: RunloopFace, image: str | None = None, key: str = OUR_KEY, **fields: Any) -> SandboxSpec:
    """A spec as core completes it; the light image unless another is named."""
    labels = {**LABELS, **fields.pop("labels", {}), "oe-key": key}
    spec = SandboxSpec(image=image or face.engine.image("light"), **fields)
    return spec.model_copy(update={"labels": labels})


async def made(provider: RunloopProvider, face: RunloopFace, key: str = OUR_KEY, **fields: Any) -> Any:
    """A devbox."""
    spec = asked(face, key=key, **fields)
    spec = provider.fit(spec, await asyncio.to_thread(images.parse, spec.image))
    return await provider.create(await prepare(provider, spec), spec, key=key)


async def run(sandbox: Any, script: str) -> tuple[int | None, bytes, bytes]:
    """A command by the provider's own primitive."""
    streams: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    result = await sandbox.exec_raw(
        ["/bin/sh", "-c", script],
        env={}, cwd=None, user=None, stdin=None, on_output=lambda name, data: streams[name].extend(data),
    )  # fmt: skip
    return result.exit_code, bytes(streams["stdout"]), bytes(streams["stderr"])
