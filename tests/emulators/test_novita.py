"""Novita: the whole proof on the vendor's own SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("novita_sandbox")

from openenv_providers.novita import NovitaProvider

from tests.emulators.engine import Engine, Front
from tests.emulators.faces.novita_face import KEY, NovitaFace
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestNovita(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        face = NovitaFace(engine)
        with Front(engine, face) as front:
            yield Emulated(
                engine,
                front,
                face,
                NovitaProvider,
                options={"gateway": front.url},
                env={"NOVITA_API_KEY": KEY, "NOVITA_API_URL": front.url, "NOVITA_SANDBOX_URL": front.url},
                wrong_auth={"NOVITA_API_KEY": "sk_wrong-key-0123456789"},
                expire="a traffic token lives as long as its sandbox",
            )
