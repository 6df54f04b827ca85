"""A backend of somebody else is configured, checked and launched by its name, like ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from openenv_sandbox import config, registry
from openenv_sandbox.launcher import sandbox
from openenv_sandbox.testing.fake import FakeCloud
from tests.unit import plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCloud]:
    plugins.install_acme(monkeypatch, tmp_path)
    with FakeCloud() as cloud:
        monkeypatch.setenv("OPENENV_PROVIDERS__ACME__ADDRESS", cloud.address)
        yield cloud
    registry.refresh()


async def test_a_plugin_is_configured_by_variables_and_launched_by_name(cloud: FakeCloud) -> None:
    assert config.load().options_for("acme") == {"address": cloud.address}
    async with sandbox("fake-env:1", provider="acme") as running:
        assert running.ref.provider == "acme"
        assert (await running.exec("echo from acme")).text().strip() == "from acme"
        assert len(cloud.live()) == 1
    assert not cloud.live()
