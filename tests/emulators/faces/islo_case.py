"""The provider of islo on its emulated service."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from openenv_providers.islo import IsloProvider

from openenv_sandbox import image as images
from openenv_sandbox.endpoint import Endpoint
from openenv_sandbox.spec import SandboxSpec
from tests.emulators.faces.islo_face import IsloFace
from tests.emulators.faces.islo_parts import KEY
from tests.emulators.proof_stage import Emulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


LABELS = {"oe-install": "abc123", "oe-run": "aaaaaaaa", "oe-expires": "4102444800"}


def spoilt(endpoint: Endpoint) -> Endpoint:
    """The address is the only credential."""
    return Endpoint(f"{endpoint.url[:-4]}oops", public=True)


@contextlib.contextmanager
def emulated(engine: Engine) -> Iterator[Emulated]:
    """One tenant; both planes on one front."""
    from tests.emulators.engine import Front

    face = IsloFace(engine)
    with Front(engine, face) as front:

        def expire(box: Any) -> None:
            face.revoke(box)
            front.cut(box)

        yield Emulated(
            engine,
            front,
            face,
            IsloProvider,
            env={
                "ISLO_BASE_URL": f"{front.url}/control",
                "ISLO_COMPUTE_URL": f"{front.url}/compute",
                "ISLO_API_KEY": KEY,
            },
            spec={"exposure": "public"},
            wrong_auth={"ISLO_API_KEY": "ak_of_somebody_else_0123456789"},
            wrong_token=spoilt,
            expire=expire,
        )


async def made(provider: IsloProvider, face: IsloFace, key: str = "oe-aaaaaaaa-000000000001", **kw: Any) -> Any:
    """A sandbox of the light image, asked for as a launch does."""
    spec = SandboxSpec(image=kw.pop("image", face.engine.image("light")), exposure="public", **kw)
    image = await asyncio.to_thread(images.parse, spec.image)
    spec = provider.fit(spec, image)
    spec = spec.model_copy(update={"labels": {**LABELS, **spec.labels, "oe-key": key}})
    prepared = await provider.prepare(spec, image, on_log=lambda line: None)
    return await provider.create(prepared, spec, key=key)
