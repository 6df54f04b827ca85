"""What arguments, configuration and the spec say, and which of them counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import ConfigError, TrustError, launch, registry, sandbox
from openenv_sandbox.provider import Image
from openenv_sandbox.request import Request, resolve
from openenv_sandbox.testing.fake import FakeCloud, FakeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with FakeCloud() as cloud:
        yield cloud


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: FakeCloud) -> Iterator[None]:
    """A project whose file sets options and a step timer."""
    (tmp_path / "openenv.toml").write_text(
        '[providers.fake]\naccount = "file"\nidle_s = 7.0\n'
        '[spec]\nuser = "me"\n[spec.timeouts]\nstep = 600.0\nexec = 9.0\n'
    )
    monkeypatch.chdir(tmp_path)
    with registry.registered(cloud.provider()):
        yield


@pytest.mark.parametrize(
    ("options", "account", "idle"),
    [
        (None, "spec", 7.0),
        ({"account": "argument"}, "argument", 7.0),
        (FakeOptions(account="argument"), "argument", None),
    ],
)
@pytest.mark.usefixtures("configured")
async def test_options_of_the_spec_reach_the_provider(options: Any, account: str, idle: float | None) -> None:
    """They stand above the configured ones and below the argument.

    Mutation: request._resolve leaves spec.provider_options out
    """
    fields = {"provider": "fake", "options": options, "provider_options": {"account": "spec"}}
    async with sandbox("fake-env:1", **fields) as box:
        assert box.ref.scope.endswith(f"/{account}")
        used: Any = box._provider
        assert used.options.idle_s == idle


@pytest.mark.usefixtures("configured")
async def test_unknown_options_of_the_spec_are_refused(cloud: FakeCloud) -> None:
    """As those of the argument are.

    Mutation: provider_options are not checked
    """
    with pytest.raises(ConfigError, match="acount"):
        await sandbox("fake-env:1", provider="fake", provider_options={"acount": "x"})
    assert cloud.count("create") == 0


@pytest.mark.usefixtures("configured")
async def test_none_that_was_said_is_not_what_was_not_said() -> None:
    """A timer of None waits for ever whatever is configured; what is not named falls back.

    Mutation: _merge drops None
    """
    asked = Request("fake-env:1", provider="fake", fields={"timeouts": {"step": None}, "user": None, "env": None})
    spec = (await resolve(asked)).spec
    assert (spec.timeouts.step, spec.timeouts.exec, spec.user, spec.env) == (None, 9.0, None, {})
    assert (await resolve(Request("fake-env:1", provider="fake"))).spec.timeouts.step == 600.0


@pytest.mark.parametrize("source", ["hf://org/space@0123", "git+https://example.org/x@0123"])
async def test_remote_code_needs_the_users_word(cloud: FakeCloud, source: str) -> None:
    """On every backend, before any request.

    Mutation: request._resolve does not look where the image is from
    """
    image: Any = Image("ref", "fake-env:1", source=source)
    with pytest.raises(TrustError, match="trust"):
        await launch(image, provider=cloud.provider())
    assert cloud.calls == []
    async with launch(image, provider=cloud.provider(), trust=True) as env:
        await env.reset()
