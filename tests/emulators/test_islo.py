"""islo: the whole proof on the vendor's own SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("islo", reason="needs the islo SDK: pip install 'openenv[islo]'")

from tests.emulators.faces import islo_case
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestIslo(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        with islo_case.emulated(engine) as found:
            yield found
