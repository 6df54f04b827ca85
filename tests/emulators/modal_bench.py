"""One emulated modal for tests of its own: the engine's face, the variables, a provider."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from openenv_sandbox.image import parse, resolve_config
from openenv_sandbox.spec import SandboxSpec
from tests.emulators.engine import Engine, Front
from tests.emulators.faces.modal import ModalFace
from tests.emulators.faces.modal_api import TOKEN_ID, TOKEN_SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from openenv_providers.modal import ModalProvider

    from openenv_sandbox.provider import Image, Sandbox


class Modal:
    """What a test uses of it."""

    def __init__(self, engine: Engine, face: ModalFace, front: Front, server_url: str) -> None:
        self.engine, self.face, self.front, self.server_url = engine, face, front, server_url
        self.made = 0

    async def provider(self, **options: Any) -> ModalProvider:
        """A provider, made as core makes it."""
        from openenv_providers.modal import ModalProvider

        return await asyncio.to_thread(ModalProvider, options)

    async def image(self, name: str) -> Image:
        """An image of the engine's registry, with its configuration, as core hands it over."""
        from dataclasses import replace

        image = await asyncio.to_thread(parse, self.engine.image(name))
        return replace(image, config=await resolve_config(image))

    def spec(self, image: str = "light", **fields: Any) -> SandboxSpec:
        """With a key among the labels."""
        return SandboxSpec(image=self.engine.image(image), **fields)

    async def create(self, provider: ModalProvider, image: str = "light", **fields: Any) -> Sandbox:
        """One sandbox."""
        self.made += 1
        key = f"oe-00000000-{self.made:012x}"
        labels = {"oe-install": "test", "oe-key": key, **fields.pop("labels", {})}
        spec = self.spec(image, labels=labels, **fields)
        prepared = await provider.prepare(spec, await self.image(image), on_log=lambda line: None)
        return await provider.create(prepared, spec, key=key)

    def box(self, sandbox: Sandbox) -> Any:
        """The engine's box of it."""
        return self.engine.boxes[sandbox.ref.id]

    def names(self) -> list[str]:
        """Calls that came, in order."""
        return [name for name, _ in self.face.calls.attempts]


@contextlib.contextmanager
def emulated_modal(engine: Engine, monkeypatch: pytest.MonkeyPatch, tls: Any = None) -> Iterator[Modal]:
    """The whole of it, and nothing left afterwards."""
    face = ModalFace(engine)
    with Front(engine, face) as front, face.serving(front.url, tls) as server_url:
        monkeypatch.setenv("MODAL_SERVER_URL", server_url)
        monkeypatch.setenv("MODAL_TOKEN_ID", TOKEN_ID)
        monkeypatch.setenv("MODAL_TOKEN_SECRET", TOKEN_SECRET)
        monkeypatch.setenv("MODAL_CONFIG_PATH", "/nonexistent/modal.toml")
        try:
            yield Modal(engine, face, front, server_url)
        finally:
            unused = engine.faults.unused()
            engine.faults.clear()
            engine.quota = None
            for box in list(engine.boxes):
                engine.call(engine.delete(box))
        assert unused == []
