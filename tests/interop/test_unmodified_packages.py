"""The packages of the usual shapes run on the published server too: they are no shapes of our own making."""

from __future__ import annotations

import pytest

from tests.adapters.served import PACKAGES, served
from tests.adapters.test_packages import LANTERN, NOTES, ROLLS, drive

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("app", "script"),
    [
        ("lantern_env.server.app:app", LANTERN),
        ("notes_env.server.app:app", NOTES),
        ("rolls_env.server.app:app", ROLLS),
    ],
    ids=["lantern", "notes", "rolls"],
)
def test_our_client_drives_the_package_on_the_published_server(reference: str, app: str, script: str) -> None:
    with served(app, PACKAGES, reference) as url:
        drive(script, url)
