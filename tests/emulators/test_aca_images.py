"""Azure Container Apps Sandboxes: disk images, logging in, and what the service's errors become."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("azure.containerapps.sandbox")

from openenv_providers._aca_errors import disk_error, translate
from openenv_providers.aca import AcaProvider

from openenv_sandbox.errors import (
    AuthError,
    BuildError,
    ConfigError,
    ExecError,
    ImageError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.provider import SandboxRef
from tests.emulators.engine import LOGIN
from tests.emulators.faces import aca_case
from tests.emulators.proof_stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

pytestmark = pytest.mark.emulator
anyio = pytest.mark.anyio


@pytest.fixture
def stage(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with aca_case.emulated(engine) as emulated:
        for name, value in emulated.env.items():
            monkeypatch.setenv(name, value)
        stage = Stage(emulated)
        yield stage
        assert stage.unused() == []
        assert stage.boxes() == []


# ------------------------------------------------------------------------------------------------------ disks


@anyio
async def test_made_once(stage: Stage) -> None:
    """Twelve launches of a new image make one disk image, later ones use it; ``pull="always"`` makes a new one.

    Mutation: what is there is not looked for, or ``always`` is ignored
    """
    made = stage.count("prepare")
    stage.emulated.face.build_s = 0.5

    async def one(**more: Any) -> None:
        async with stage.sandbox(**more):
            pass

    await asyncio.gather(*(one() for _ in range(12)))
    await one()
    assert made.hits == len(stage.emulated.face.disks) == 1
    await one(pull="always")
    assert made.hits == 2
    (first, second) = stage.emulated.face.disks.values()
    assert first["image"] == second["image"] == {"base": stage.emulated.light}
    assert first["labels"]["name"].startswith("oe-")


@anyio
async def test_making_fails(stage: Stage) -> None:
    """The service's reason is in the error, and nothing is left of the attempt.

    Mutation: the state Failed is waited for, or its message dropped
    """
    with pytest.raises(BuildError, match="no space left on device") as caught:
        await stage.sandbox("broken:1")
    assert caught.value.provider == "aca"
    assert stage.emulated.face.disks == {}


@anyio
async def test_private_images(stage: Stage) -> None:
    """A login is handed over; without one the error says where it goes.

    Mutation: the login is not sent
    """
    ref = stage.engine.image("private/light")
    with pytest.raises(ImageError, match="registry_auth"):
        await stage.sandbox(ref, command="true")
    async with stage.sandbox(ref, registry_auth=dict(zip(("username", "password"), LOGIN, strict=True))):
        pass


@anyio
@pytest.mark.parametrize("own", [True, False])
async def test_an_identity_pulls_from_its_registry_alone(stage: Stage, own: bool) -> None:
    """Whoever names the image does not choose who sees the identity.

    Mutation: the identity goes along with every ref
    """
    host = stage.engine.registry if own else "myregistry.azurecr.io"
    options = {**stage.emulated.options, "pull_identity": "/subscriptions/x/identities/y", "pull_registry": host}
    ref = stage.engine.image("private/light")
    if not own:
        with pytest.raises(ImageError):
            await stage.sandbox(ref, command="true", options=options)
        return
    async with stage.sandbox(ref, command="true", options=options):
        pass


@anyio
async def test_templates(stage: Stage) -> None:
    """The service's own disk images by name, private ones by id and by name, and none that is not there."""
    async with stage.sandbox("template:ubuntu", command="true") as sandbox:
        source = stage.box(sandbox.ref).data["body"]["sourcesRef"]
        assert source == {"diskImage": {"name": "ubuntu", "isPublic": True}}
        assert (await sandbox.exec("echo in it")).text() == "in it\n"
    async with stage.sandbox():
        (disk,) = stage.emulated.face.disks.values()
    for name in (disk["id"], disk["labels"]["name"]):
        async with stage.launch(f"template:{name}") as env:  # its image says what to start
            await env.reset()
            assert stage.box(env.sandbox.ref).data["body"]["sourcesRef"] == {"diskImage": {"id": disk["id"]}}
    with pytest.raises(ImageError, match="no-such-disk"):
        await stage.sandbox("template:no-such-disk", command="true")


@anyio
async def test_a_snapshot_knows_its_image(stage: Stage) -> None:
    """What boots from a snapshot runs the image's command with its files, user and variables, under a key of its own.

    Mutation: the snapshot's name does not lead back to what its sandbox was made from
    """
    async with stage.launch(stage.emulated.user_env) as env:
        await env.reset()
        await env.sandbox.write("/srv/kept", b"kept", user="root")
        kept = await env.sandbox.snapshot()
        async with stage.launch(f"snapshot:{kept.ref}") as again:
            seen: Any = (await again.reset()).observation
            assert (seen["uid"], seen["mark"], seen["starts"]) == (
                1000,
                "from the image",
                2,
            )  # one before, kept in a file
            assert await again.sandbox.read("/srv/kept") == b"kept"
            assert again.sandbox.ref.key not in (None, env.sandbox.ref.key)
    provider = await stage.make()
    mine = [found for found in await provider.list_prepared() if found.ref == kept.ref]
    assert mine[0].labels["oe-install"] == kept.labels["oe-install"]
    await provider.drop(kept)
    await provider.aclose()


# ----------------------------------------------------------------------------------------------------- errors


@anyio
async def test_nothing_listens(stage: Stage) -> None:
    """A service that cannot be reached had no request: the create may be repeated, and says so."""
    provider = AcaProvider({**stage.emulated.options, "endpoint": "https://127.0.0.1:1"})
    with pytest.raises(ProviderUnavailable) as caught:
        await provider.find("oe-1-2")
    assert (caught.value.outcome, caught.value.retryable) == ("failed", True)
    await provider.aclose()


@anyio
async def test_an_unknown_authority(stage: Stage) -> None:
    """A certificate that nobody vouched for is refused, once, and the error names the option.

    Mutation: verification is off
    """
    provider = AcaProvider({**stage.emulated.options, "ca_file": None})
    with pytest.raises(ProviderUnavailable, match="ca_file") as caught:
        await provider.find("oe-1-2")
    assert not caught.value.retryable
    await provider.aclose()


@anyio
async def test_no_such_group(stage: Stage) -> None:
    """404 for the whole group is not an empty group, nor a sandbox that is gone.

    Mutation: 404 of a listing becomes an empty list
    """
    provider = AcaProvider({**stage.emulated.options, "sandbox_group": "elsewhere"})
    with pytest.raises(ProviderUnavailable, match="group"):
        await provider.find("oe-1-2")
    await provider.aclose()


class Reply:
    """A response as azure-core's errors want it."""

    reason = "said"

    def __init__(self, status: int, code: str, text: str, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers
        self._body = {"error": {"code": code, "message": text}}

    def body(self) -> bytes:
        import json

        return json.dumps(self._body).encode()

    def text(self, encoding: str | None = None) -> str:
        return self.body().decode()


CASES: list[tuple[int, str, str, dict[str, str], type[Exception], str, bool]] = [
    (400, "Bad", "no", {}, ProviderError, "failed", False),
    (401, "Bad", "no", {}, AuthError, "failed", False),
    (402, "Bad", "no", {}, QuotaExceeded, "failed", False),
    (403, "AuthorizationFailed", "no", {}, AuthError, "failed", False),
    (403, "QuotaExceeded", "the quota of the subscription is used up", {}, QuotaExceeded, "failed", False),
    (404, "SandboxNotFound", "no", {}, SandboxGone, "failed", False),
    (409, "Conflict", "no", {}, ProviderError, "failed", True),
    (409, "SandboxNotRunning", "no", {}, ExecError, "failed", False),
    (429, "TooManyRequests", "sandbox limit reached", {"Retry-After": "7"}, RateLimited, "failed", True),
    (500, "Internal", "no", {}, ProviderUnavailable, "unknown", True),
    (503, "Busy", "no", {"Retry-After": "3"}, RateLimited, "failed", True),
    (504, "Gateway", "no", {}, ProviderUnavailable, "unknown", True),
]


@pytest.mark.parametrize(("status", "code", "text", "headers", "kind", "outcome", "retryable"), CASES)
def test_table(
    status: int, code: str, text: str, headers: dict[str, str], kind: type[Exception], outcome: str, retryable: bool
) -> None:
    """Each answer has its class, outcome and whether waiting helps; it names sandbox and provider, and pickles."""
    from azure.containerapps.sandbox import _helpers
    from azure.core.exceptions import HttpResponseError

    with pytest.raises(HttpResponseError) as raised:
        _helpers._raise_if_error(Reply(status, code, text, headers))
    error = translate(raised.value, "doing it", ref=SandboxRef("aca", "s", "box-1"), acts=True)
    assert type(error) is kind or (kind is ExecError and isinstance(error, ExecError))
    assert (error.outcome, error.retryable) == (outcome, retryable)
    assert "box-1" in str(error)
    assert code in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if isinstance(error, RateLimited):
        assert error.retry_after == float(headers["Retry-After"])


def test_table_without_a_status() -> None:
    """What never reached the service, what was lost on the way back, and what the SDK refuses by itself."""
    from azure.core import exceptions as azure
    from azure.identity import CredentialUnavailableError

    def told(error: Exception) -> tuple[str, str, bool]:
        found = translate(error, "doing it", acts=True)
        return type(found).__name__, found.outcome, found.retryable

    assert told(azure.ServiceRequestError("refused")) == ("ProviderUnavailable", "failed", True)
    assert told(azure.ServiceResponseError("reset")) == ("ProviderUnavailable", "unknown", True)
    assert told(CredentialUnavailableError("no way")) == ("ProviderUnavailable", "failed", False)
    wrong = azure.ClientAuthenticationError("AADSTS7000215: Invalid client secret provided")
    assert told(wrong) == ("AuthError", "failed", False)
    assert told(RuntimeError("Sandbox x entered terminal state 'failed'")) == ("ProviderError", "unknown", False)
    assert told(TimeoutError("not Running within 5s")) == ("ProviderError", "unknown", True)
    assert told(ValueError("Invalid sandbox_id")) == ("ConfigError", "failed", False)


@pytest.mark.parametrize(
    ("said", "kind"),
    [("manifest unknown", ImageError), ("unauthorized: login", ImageError), ("disk full", BuildError)],
)
def test_disk_errors(said: str, kind: type[Exception]) -> None:
    assert type(disk_error("making it failed", said)) is kind


# ------------------------------------------------------------------------------------------------------ login

GROUP = {"region": "westus2", "subscription_id": "s", "resource_group": "r", "sandbox_group": "g"}
PRINCIPAL = {"AZURE_CLIENT_ID": "i", "AZURE_TENANT_ID": "t"}


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        ({}, {}, "region, subscription_id, resource_group, sandbox_group not set"),
        (GROUP, {}, "no login found"),
        (GROUP, PRINCIPAL, "AZURE_CLIENT_SECRET not set"),
        (GROUP, {**PRINCIPAL, "AZURE_CLIENT_SECRET": "x"}, ""),
        (GROUP, {**PRINCIPAL, "AZURE_FEDERATED_TOKEN_FILE": "/x"}, ""),
        (GROUP, {"IDENTITY_ENDPOINT": "http://x"}, ""),
        ({**GROUP, "credential": "managed-identity"}, {}, ""),
        ({**GROUP, "credential": "token"}, {}, "AZURE_SANDBOX_TOKEN not set"),
        ({**GROUP, "credential": "token"}, {"AZURE_SANDBOX_TOKEN": "x"}, ""),
    ],
)
def test_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str], variables: dict[str, str], said: str
) -> None:
    """Without network: which option or variable is missing, by whichever way to log in."""
    import os

    for name in [name for name in os.environ if name.startswith(("AZURE_", "IDENTITY_", "MSI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check = AcaProvider.check(options)
    assert (check.ready, check.reason) == (not said, said)
    assert check.ready or check.hint


def test_check_of_az_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Azure CLI's login counts where its program is there as well."""
    for name in (*PRINCIPAL, "IDENTITY_ENDPOINT", "MSI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    (tmp_path / "msal_token_cache.json").write_text("{}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "az is not on PATH" in AcaProvider.check(GROUP).reason
    (tmp_path / "az").write_text("#!/bin/sh\n")
    (tmp_path / "az").chmod(0o755)
    assert AcaProvider.check(GROUP).ready


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "http://127.0.0.1:1"},
        {"pull_identity": "/subscriptions/x"},
        {"idle_s": 10},
        {"gateway": "no-port"},
        {"credential": "password"},
    ],
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    """A clear text endpoint, an identity for every registry, and what an owner could not keep alive."""
    with pytest.raises(ConfigError):
        AcaProvider(options)


@pytest.mark.anyio
async def test_no_group_is_named() -> None:
    """Options may be missing until something is asked of the service."""
    provider = AcaProvider({"region": "westus2"})
    assert provider.scope().startswith("https://management.westus2.azuredevcompute.io ")
    with pytest.raises(ProviderUnavailable, match="resource_group"):
        await provider.find("oe-1-2")
    await provider.aclose()
