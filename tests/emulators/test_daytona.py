"""Daytona: the vendor's SDK against the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("daytona_api_client_async", reason="needs the daytona SDK: pip install 'openenv[daytona]'")

from openenv_providers.daytona import DaytonaProvider

from tests.emulators.faces.daytona_api import KEY, DaytonaFace
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestDaytona(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        from tests.emulators.engine import Front

        face = DaytonaFace(engine)
        with Front(engine, face) as front:

            def expire(box: Any) -> None:
                face.tokens.pop(box.id)
                front.cut(box)

            yield Emulated(
                engine,
                front,
                face,
                DaytonaProvider,
                env={"DAYTONA_API_URL": f"{front.url}/api", "DAYTONA_API_KEY": KEY, "DAYTONA_TARGET": "us"},
                wrong_auth={"DAYTONA_API_KEY": "dtn_wrong_key_0123456789"},
                expire=expire,
            )
