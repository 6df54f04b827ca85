"""Novita: the whole proof on the vendor's own SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("novita_sandbox")

from tests.emulators.e2b_bench import emulate
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestNovita(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        yield from emulate("novita", engine)
