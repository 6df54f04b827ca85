"""The proof on an invented vendor: what shows that the proof itself can be passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.emulators.mini.face import KEY, MiniFace
from tests.emulators.mini.provider import MiniProvider
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine


class TestMini(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        from tests.emulators.engine import Front

        face = MiniFace(engine)
        with Front(engine, face) as front:

            def expire(box: Any) -> None:
                face.tokens.pop(box.id)
                front.cut(box)

            yield Emulated(
                engine,
                front,
                face,
                MiniProvider,
                options={"url": front.url},
                env={"MINI_API_KEY": KEY},
                wrong_auth={"MINI_API_KEY": "wrong-key-0123456789"},
                expire=expire,
            )
