"""Runloop: the vendor's SDK against the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("runloop_api_client", reason="needs the Runloop SDK: pip install 'openenv[runloop]'")

from openenv_providers.runloop import RunloopProvider

from tests.emulators.faces.runloop_api import KEY, RunloopFace
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestRunloop(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        from tests.emulators.engine import Front

        face = RunloopFace(engine)
        with Front(engine, face) as front:
            yield Emulated(
                engine,
                front,
                face,
                RunloopProvider,
                options={"gateway": front.url},
                env={"RUNLOOP_BASE_URL": front.url, "RUNLOOP_API_KEY": KEY},
                wrong_auth={"RUNLOOP_API_KEY": "ak_wrong_key_0123456789"},
                expire="a tunnel's token lives as long as its devbox",
            )
