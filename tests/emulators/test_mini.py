"""The proof on an invented vendor: what shows that the proof itself can be passed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulators.engine import Engine, Front
from tests.emulators.mini.face import KEY, MiniFace
from tests.emulators.mini.provider import BlindMiniProvider, MiniProvider
from tests.emulators.proof import Emulated, EmulatorFixtures, EmulatorProof
from tests.emulators.proof_faults import FaultProof

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def emulate(engine: Engine, provider: type[MiniProvider]) -> Iterator[Emulated]:
    face = MiniFace(engine)
    with Front(engine, face) as front:

        def expire(box: Any) -> None:
            face.tokens.pop(box.id)
            front.cut(box)

        yield Emulated(
            engine,
            front,
            face,
            provider,
            options={"url": front.url},
            env={"MINI_API_KEY": KEY},
            wrong_auth={"MINI_API_KEY": "wrong-key-0123456789"},
            expire=expire,
        )


class TestMini(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        with emulate(engine, MiniProvider) as emulated:
            yield emulated


class TestBlindMini(EmulatorFixtures):
    """Where nothing can be looked up, what is left is told with its end, and ends then."""

    @pytest.fixture
    def emulated(self, engine: Engine) -> Iterator[Emulated]:
        with emulate(engine, BlindMiniProvider) as emulated:
            yield emulated

    test_killed_child = FaultProof.test_killed_child
    test_reply_lost = FaultProof.test_reply_lost
