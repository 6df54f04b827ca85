"""The provider of islo on its emulated service."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from openenv_providers.islo import IsloProvider

from openenv_sandbox.endpoint import Endpoint
from tests.emulators.faces.islo_face import IsloFace
from tests.emulators.faces.islo_parts import KEY
from tests.emulators.proof_stage import Emulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


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
