"""Azure Container Apps Sandboxes: the whole proof on the vendor's own SDK, over TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("azure.containerapps.sandbox")

from openenv_providers.aca import AcaProvider

from tests.emulators.engine import Engine, Front
from tests.emulators.faces.aca_face import GROUP, PORTS, RESOURCES, SUBSCRIPTION, TOKEN, AcaFace
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestAca(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
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
