"""The provider of Azure Container Apps Sandboxes on its emulated data plane."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from openenv_providers.aca import AcaProvider

from tests.emulators.engine import Engine, Front
from tests.emulators.faces.aca_face import GROUP, PORTS, RESOURCES, SUBSCRIPTION, TOKEN, AcaFace
from tests.emulators.proof_stage import Emulated

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def emulated(engine: Engine) -> Iterator[Emulated]:
    """One sandbox group, over TLS."""
    face = AcaFace(engine)
    context, authority = engine.tls(f"*.{PORTS}")
    with Front(engine, face, tls=context) as front:
        yield Emulated(
            engine,
            front,
            face,
            AcaProvider,
            options={
                "endpoint": front.url,
                "subscription_id": SUBSCRIPTION,
                "resource_group": RESOURCES,
                "sandbox_group": GROUP,
                "credential": "token",
                "ca_file": str(authority),
                "gateway": f"127.0.0.1:{front.port}",
            },
            env={"AZURE_SANDBOX_TOKEN": TOKEN},
            spec={"exposure": "public"},
            wrong_auth={"AZURE_SANDBOX_TOKEN": "eyJ.of-somebody-else.0123456789"},
            wrong_token="ports are anonymous: the server's own token alone guards them",
            expire="ports have no token",
        )
