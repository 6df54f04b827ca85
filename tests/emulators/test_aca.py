"""Azure Container Apps Sandboxes: the whole proof on the vendor's own SDK, over TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("azure.containerapps.sandbox")

from tests.emulators.faces import aca_case
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestAca(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        with aca_case.emulated(engine) as found:
            yield found
