"""E2B: the whole proof on the vendor's own SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("e2b")

from tests.emulators.e2b_bench import emulate
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestE2b(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        yield from emulate("e2b", engine)
