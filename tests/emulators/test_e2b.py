"""E2B: the whole proof on the vendor's own SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("e2b")

from openenv_providers.e2b import E2bProvider

from tests.emulators.engine import Engine, Front
from tests.emulators.faces.e2b_face import KEY, E2bFace
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestE2b(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        face = E2bFace(engine)
        with Front(engine, face) as front:
            yield Emulated(
                engine,
                front,
                face,
                E2bProvider,
                options={"gateway": front.url},
                env={"E2B_API_KEY": KEY, "E2B_API_URL": front.url, "E2B_SANDBOX_URL": front.url},
                wrong_auth={"E2B_API_KEY": "e2b_wrong-key-0123456789"},
                expire="a traffic token lives as long as its sandbox",
            )
