"""islo's requests: logins, what is repeated and what is not, every error as ours, and what the emulator refuses."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("islo", reason="needs the islo SDK: pip install 'openenv[islo]'")

from islo.core.api_error import ApiError
from islo.core.parse_error import ParsingError
from openenv_providers._islo_api import translate
from openenv_providers.islo import IsloProvider

from openenv_sandbox.errors import (
    AuthError,
    ExecError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.values import SandboxRef
from tests.emulators.faces import islo_case
from tests.emulators.faces.islo_case import made
from tests.emulators.faces.islo_parts import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from openenv_sandbox.provider import Sandbox
    from tests.emulators.engine import Engine
    from tests.emulators.faces.islo_face import IsloFace
    from tests.emulators.proof_stage import Emulated

pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def emulated(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    with islo_case.emulated(engine) as found:
        for name, value in found.env.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def face(emulated: Emulated) -> IsloFace:
    return emulated.face  # type: ignore[no-any-return]


@pytest.fixture
async def provider(face: IsloFace) -> AsyncIterator[IsloProvider]:
    provider = await asyncio.to_thread(IsloProvider)
    yield provider
    await provider.aclose()


async def run(sandbox: Sandbox, *argv: str) -> tuple[int | None, bytes]:
    said = bytearray()
    result = await sandbox.exec_raw(
        argv, env={}, cwd=None, user=None, stdin=None, on_output=lambda stream, data: said.extend(data)
    )
    return result.exit_code, bytes(said)


# -------------------------------------------------------------------------------------------------------- logins


async def test_one_login_for_all(provider: IsloProvider, face: IsloFace) -> None:
    """The key is exchanged once for all who wait, and again when the token is about to end.

    Mutation: each request logs in
    """
    await asyncio.gather(*(provider.find(f"oe-aaaaaaaa-00000000000{n}") for n in range(5)))
    assert face.control.logins == 1
    face.control.max_age = 60
    again = await asyncio.to_thread(IsloProvider)
    await again.find("oe-aaaaaaaa-000000000001")
    before = face.control.logins
    await again.find("oe-aaaaaaaa-000000000001")
    assert face.control.logins > before
    await again.aclose()


async def test_two_loops(provider: IsloProvider, face: IsloFace) -> None:
    """A provider, and its login, may be used in a second loop while the first waits.

    Mutation: the SDK's own login, whose lock belongs to the loop that waited first
    """
    held = face.engine.faults.add("login", hang=True)
    here = [asyncio.ensure_future(provider.find(f"oe-aaaaaaaa-00000000000{n}")) for n in range(2)]
    await held.reached()
    found: list[Any] = []

    async def there() -> None:
        found.append(await asyncio.gather(*(provider.find(f"oe-bbbbbbbb-00000000000{n}") for n in range(2))))
        await provider.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(there()))
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert found == [[[], []]]
    held.release()
    assert await asyncio.gather(*here) == [[], []]


async def test_without_a_key(face: IsloFace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would send requests without a login: nothing is sent.

    Mutation: the credential is looked for by `check` only
    """
    monkeypatch.delenv("ISLO_API_KEY")
    assert "ISLO_API_KEY" in IsloProvider.check().reason
    provider = await asyncio.to_thread(IsloProvider)
    with pytest.raises(ProviderUnavailable, match="ISLO_API_KEY") as caught:
        await made(provider, face)
    assert caught.value.outcome == "failed"
    await provider.aclose()
    assert (face.bodies, face.control.logins) == ([], 0)


async def test_scopes(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key is another account, and the key itself is in no scope."""
    mine = (await asyncio.to_thread(IsloProvider)).scope()
    assert mine.startswith(emulated.env["ISLO_COMPUTE_URL"])
    assert KEY not in mine
    monkeypatch.setenv("ISLO_API_KEY", "ak_of_somebody_else")
    assert (await asyncio.to_thread(IsloProvider)).scope() != mine
    elsewhere = await asyncio.to_thread(IsloProvider, {"compute_url": "https://eu.example.org"})
    assert elsewhere.scope().startswith("https://eu.example.org ")


# ------------------------------------------------------------------------------------------ what is sent once only


async def test_nothing_is_repeated_by_the_sdk(provider: IsloProvider, face: IsloFace) -> None:
    """Mutation: the SDK's own repeating is left on: up to three creates, and seconds of waiting at each 5xx"""
    fault = face.engine.faults.add("create", status=500, times=None)
    with pytest.raises(ProviderError) as caught:
        await made(provider, face)
    assert (fault.hits, caught.value.outcome, caught.value.retryable) == (1, "unknown", True)
    fault.times = fault.hits


async def test_a_lost_answer_ends_no_command(provider: IsloProvider, face: IsloFace) -> None:
    """A question for a result may fail and is asked again; the command runs once.

    Mutation: a failing question is an error of the command
    """
    sandbox = await made(provider, face)
    faults = [face.engine.faults.add("result", status=status) for status in (503, 0)]
    slow = face.engine.faults.add("result", status=429, retry_after=0.1, skip=2)
    assert await run(sandbox, "/bin/sh", "-c", "echo once >>/tmp/o; cat /tmp/o; sleep 0.4") == (0, b"once\n")
    assert [fault.hits for fault in (*faults, slow)] == [1, 1, 1]


async def test_a_command_of_unknown_outcome_is_not_repeated(provider: IsloProvider, face: IsloFace) -> None:
    """Mutation: a lost reply to the start of a command starts another"""
    sandbox = await made(provider, face)
    face.engine.faults.add("exec", when="after", status=0)
    with pytest.raises(OpenEnvError) as caught:
        await run(sandbox, "/bin/sh", "-c", "echo x >>/tmp/o")
    assert (caught.value.outcome, len(face.execs)) == ("unknown", 1)
    for _ in range(40):  # it runs on without us
        code, said = await run(sandbox, "/bin/cat", "/tmp/o")
        if code == 0:
            break
    assert said == b"x\n"


async def test_output_beyond_an_answer(provider: IsloProvider, face: IsloFace) -> None:
    """What islo would cut off comes by a file, whole, and the file is removed; what is cut all the same is an error.

    Mutation: ``truncated`` is not looked at, or files of outputs are left
    """
    sandbox = await made(provider, face)
    script = "head -c 300000 /dev/zero | tr '\\0' x; exit 3"
    assert await run(sandbox, "/bin/sh", "-c", script) == (3, b"x" * 300_000)
    for _ in range(40):
        if await run(sandbox, "/bin/ls", "-A", "/tmp") == (0, b""):
            break
    else:
        pytest.fail("the file is left")
    with pytest.raises(ExecError, match="cut off") as caught:
        await run(sandbox, "/usr/bin/head", "-c", "300000", "/dev/zero")
    assert caught.value.outcome == "unknown"


async def test_commands_run_as_root(provider: IsloProvider, face: IsloFace) -> None:
    """Whatever user the image has: core changes the user, and only root can.

    Mutation: the image's user, who could not read what `put` wrote for another
    """
    sandbox = await made(provider, face, image=face.engine.image("user-env"))
    assert await run(sandbox, "/bin/sh", "-c", "id -u") == (0, b"0\n")


# -------------------------------------------------------------------------------------------------------- errors

REF = SandboxRef("islo", "s", "oe-x")


def answer(status: int, code: str = "", message: str = "no", **headers: str) -> ApiError:
    return ApiError(status_code=status, headers=headers, body={"code": code, "message": message})


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "outcome"),
    [
        (answer(400, "INVALID_REQUEST"), ProviderError, False, "failed"),
        (answer(401, "AUTH_REQUIRED"), AuthError, False, "failed"),
        (answer(402), QuotaExceeded, False, "failed"),
        (answer(403, "ACCESS_DENIED"), AuthError, False, "failed"),
        (answer(403, "TENANT_SUSPENDED"), QuotaExceeded, False, "failed"),
        (answer(404, "SANDBOX_NOT_FOUND"), SandboxGone, False, "failed"),
        (answer(409, "SANDBOX_INVALID_STATE"), ProviderError, True, "failed"),
        (answer(429, "RATE_LIMITED", **{"Retry-After": "3"}), RateLimited, True, "failed"),
        (answer(503, "RESOURCE_UNAVAILABLE"), RateLimited, True, "failed"),
        (answer(500), ProviderError, True, "unknown"),
        (answer(502), ProviderUnavailable, True, "unknown"),
        (answer(503, "INTERNAL_ERROR"), ProviderUnavailable, True, "unknown"),
        (ApiError(status_code=504, headers={}, body="<html>"), ProviderUnavailable, True, "unknown"),
        (ParsingError(status_code=401, headers={}, body={"error": "x"}), AuthError, False, "failed"),
        (ParsingError(status_code=200, headers={}, body={"url": "https://s3kret"}), ProviderError, False, "unknown"),
        (httpx.ConnectError("no"), ProviderUnavailable, True, "failed"),
        (httpx.ReadTimeout("no"), ProviderUnavailable, True, "unknown"),
        (httpx.RemoteProtocolError("no"), ProviderUnavailable, True, "unknown"),
        (KeyError("session_token"), ProviderError, False, "unknown"),
    ],
)  # fmt: skip
async def test_the_table_of_errors(error: Exception, kind: type, retryable: bool, outcome: str) -> None:
    found = translate(error, what="creating", ref=REF)
    assert type(found) is kind
    assert (found.retryable, found.outcome, found.provider, found.ref) == (retryable, outcome, "islo", REF)
    assert "s3kret" not in f"{found}{found!r}"
    assert not isinstance(found, RateLimited) or found.retry_after in (None, 3.0)


# ------------------------------------------------------------------------------------------ the emulator is strict

REFUSED: dict[str, tuple[str, str, Any, int, str]] = {
    "unknown field": ("POST", "/compute/sandboxes", {"image": "x", "gpu": 1}, 422, "gpu"),
    "mistyped cores": ("POST", "/compute/sandboxes", {"image": "x", "vcpus": "2"}, 422, "vcpus"),
    "half a core": ("POST", "/compute/sandboxes", {"image": "x", "vcpus": 0.5}, 422, "vcpus"),
    "too many cores": ("POST", "/compute/sandboxes", {"image": "x", "vcpus": 9}, 422, "1 to 8"),
    "too little memory": ("POST", "/compute/sandboxes", {"image": "x", "memory_mb": 255}, 422, "256"),
    "a name with a dot": ("POST", "/compute/sandboxes", {"image": "x", "name": "a.b"}, 422, "name"),
    "an unknown profile": ("POST", "/compute/sandboxes", {"image": "x", "gateway_profile": "p"}, 400, "profile"),
    "an unknown sandbox": ("GET", "/compute/sandboxes/nobody", None, 404, "nobody"),
    "a mistyped command": ("POST", "/compute/sandboxes/{box}/exec", {"command": "ls"}, 422, "command"),
    "no command": ("POST", "/compute/sandboxes/{box}/exec", {"command": []}, 422, "command"),
    "an unknown program": ("POST", "/compute/sandboxes/{box}/exec", {"command": ["/no"]}, 400, "/no"),
    "an unknown result": ("GET", "/compute/sandboxes/{box}/exec/none", None, 404, "none"),
    "a share without a port": ("POST", "/compute/sandboxes/{box}/shares", {}, 422, "port"),
    "an impossible port": ("POST", "/compute/sandboxes/{box}/shares", {"port": 70000}, 400, "port"),
    "an unknown share": ("DELETE", "/compute/sandboxes/{box}/shares/sh_0", None, 404, "sh_0"),
    "resuming what runs": ("POST", "/compute/sandboxes/{box}/resume", None, 409, "running"),
    "an unknown action": (
        "POST", "/control/gateway/profiles", {"name": "p", "default_action": "drop"}, 422, "default_action",
    ),
    "an unknown snapshot": ("DELETE", "/compute/snapshots/none", None, 404, "snapshot"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
async def test_what_the_emulator_refuses(emulated: Emulated, provider: IsloProvider, case: str) -> None:
    """In the vendor's envelope; without a token nothing is answered at all."""
    method, path, body, status, part = REFUSED[case]
    sandbox = await made(provider, emulated.face)
    url = emulated.front.url + path.format(box=sandbox.ref.id)
    async with httpx.AsyncClient(trust_env=False) as client:
        bare = await client.request(method, url, json=body)
        assert (bare.status_code, bare.json()["code"]) == (401, "AUTH_REQUIRED")
        token = next(iter(emulated.face.control.tokens))
        told = await client.request(method, url, json=body, headers={"Authorization": f"Bearer {token}"})
    assert told.status_code == status
    assert part in told.json()["message"]
    await provider.delete(sandbox.ref)
