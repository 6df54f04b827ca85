"""Modal: the whole proof, with its real SDK against the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openenv_providers.modal import ModalProvider

from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulators.engine import Engine

pytest.importorskip("modal")


class TestModal(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine, tmp_path: Any) -> Iterator[Emulated]:
        from tests.emulators.engine import Front
        from tests.emulators.faces.modal import ModalFace
        from tests.emulators.faces.modal_api import TOKEN_ID, TOKEN_SECRET

        face = ModalFace(engine)
        with Front(engine, face) as front, face.serving(front.url) as server_url:
            face.control.apps["/openenv"] = face.store.mint("ap")  # as of the first launch ever

            def expire(box: Any) -> None:
                face.expire(box.id)
                front.cut(box)

            yield Emulated(
                engine,
                front,
                face,
                ModalProvider,
                env={
                    "MODAL_SERVER_URL": server_url,
                    "MODAL_TOKEN_ID": TOKEN_ID,
                    "MODAL_TOKEN_SECRET": TOKEN_SECRET,
                    "MODAL_CONFIG_PATH": str(tmp_path / "none.toml"),
                },
                wrong_auth={"MODAL_TOKEN_SECRET": "as-certainly-wrong-0001"},
                expire=expire,
            )
