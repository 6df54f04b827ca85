"""Modal: what the spec becomes on its wire, both families of sandboxes, tunnels, errors, and manners of its SDK."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from openenv_sandbox import redact
from openenv_sandbox.errors import CapabilityError, ProviderUnavailable, QuotaExceeded, RateLimited, SandboxGone
from openenv_sandbox.spec import PortSpec, Resources
from tests.emulators.modal_bench import Modal, emulated_modal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

pytest.importorskip("modal")
pytestmark = [pytest.mark.anyio, pytest.mark.emulator]


@pytest.fixture
def modal(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modal]:
    tls, cert = engine.tls()
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with emulated_modal(engine, monkeypatch, tls) as modal:
        yield modal


async def test_sizes_timer_name_and_place(modal: Modal) -> None:
    provider = await modal.provider(region="eu", runtime="vm")
    assert provider.effective_capabilities().isolation == "vm"
    sandbox = await modal.create(
        provider, resources=Resources(cpus=1.5, memory_mb=512), timeouts={"ready": 10, "episode": 100.2, "margin": 5}
    )
    record = modal.face.records[sandbox.ref.id]
    asked = record.definition
    size = asked.resources
    assert (size.milli_cpu, size.milli_cpu_max, size.memory_mb, size.memory_mb_max) == (1500, 1500, 512, 512)
    assert (asked.timeout_secs, asked.HasField("idle_timeout_secs"), asked.runtime) == (116, False, "vm")
    assert list(asked.scheduler_placement.regions) == ["eu"]
    assert (asked.name, record.tags["oe-key"]) == (sandbox.ref.key, sandbox.ref.key)
    assert list(asked.open_ports.ports) == []
    assert sandbox.info.expires_at == pytest.approx(time.time() + 116, abs=30)
    await provider.delete(sandbox.ref)
    await provider.aclose()


@pytest.mark.parametrize(
    ("network", "kind", "cidrs", "domains"),
    [
        ("full", "OPEN", [], []),
        ("none", "ALLOWLIST", [], []),
        ({"mode": "allowlist", "cidrs": ["10.0.0.0/8"]}, "ALLOWLIST", ["10.0.0.0/8"], []),
        ({"mode": "allowlist", "hosts": ["a.org", "*.b.org"]}, "ALLOWLIST", [], ["a.org", "*.b.org"]),
    ],
)
async def test_network(modal: Modal, network: Any, kind: str, cidrs: list[str], domains: list[str]) -> None:
    """Under every policy the port of the server stays reachable."""
    provider = await modal.provider()
    sandbox = await modal.create(provider, network=network)
    access = modal.face.records[sandbox.ref.id].definition.network_access
    assert access.NetworkAccessType.Name(access.network_access_type) == kind
    assert (list(access.allowed_cidrs), list(access.allowed_domains)) == (cidrs, domains)
    endpoint = await sandbox.endpoint(8000)
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(100):
            reply = await client.get(f"{endpoint.url}/health", headers=endpoint.headers)
            if reply.status_code == 200:
                break
            await asyncio.sleep(0.05)
    assert reply.status_code == 200
    await provider.delete(sandbox.ref)
    await provider.aclose()


async def test_secrets_travel_inside_the_create_alone(modal: Modal) -> None:
    provider = await modal.provider()
    sandbox = await modal.create(provider, env={"A": "1", "B": "plain"}, secrets={"B": "s3kret-value"})
    assert (modal.box(sandbox).env["A"], modal.box(sandbox).env["B"]) == ("1", "s3kret-value")
    assert "SecretGetOrCreate" not in modal.names()
    assert "s3kret-value" not in str(modal.face.records[sandbox.ref.id].definition)
    await provider.delete(sandbox.ref)
    await provider.aclose()


async def test_a_gpu_uses_the_older_family(modal: Modal) -> None:
    from openenv_sandbox.testing.suite_raw import raw

    provider = await modal.provider()
    sandbox = await modal.create(
        provider, resources=Resources(gpus="H100:2"), env={"A": "1"}, secrets={"B": "s3kret-value"}
    )
    record = modal.face.records[sandbox.ref.id]
    gpu = record.definition.resources.gpu_config
    assert (record.family, gpu.gpu_type, gpu.count, len(record.id)) == ("V1", "H100", 2, 25)
    assert (modal.box(sandbox).env["A"], modal.box(sandbox).env["B"]) == ("1", "s3kret-value")
    assert modal.names().count("SecretGetOrCreate") == 1
    result, out, _ = await raw(sandbox, "/bin/sh", "-c", "cat; exit 5", stdin=b"in")
    assert (result.exit_code, out) == (5, b"in")
    assert (await sandbox.endpoint(8000)).headers["Authorization"].startswith("Bearer ")
    found = await provider.find(str(sandbox.ref.key))
    assert [ref.id for ref in found] == [sandbox.ref.id]
    again = await provider.attach(found[0])
    assert again.info.labels["oe-key"] == sandbox.ref.key
    waiting = asyncio.ensure_future(again.wait_exit())
    await provider.delete(sandbox.ref)
    with pytest.raises(SandboxGone, match="terminated"):
        await waiting
    assert {"SandboxCreate", "SandboxTerminate", "TaskGetCommandRouterAccess"} <= set(modal.names())
    assert "SandboxCreateV2" not in modal.names()
    await provider.aclose()


@pytest.mark.parametrize("gpus", [None, "T4"])
async def test_last_words_and_the_log(modal: Modal, gpus: str | None) -> None:
    provider = await modal.provider()
    script = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo dying words >&2; exit 17"
    sandbox = await modal.create(provider, resources=Resources(gpus=gpus), command=("/bin/sh", "-c", script))
    for _ in range(100):
        if await sandbox.logs() == b"first\n":
            break
        await asyncio.sleep(0.05)
    waiting = asyncio.ensure_future(sandbox.wait_exit())
    modal.engine.call(modal.box(sandbox).write("/tmp/go", b""))
    ended = await asyncio.wait_for(waiting, 30)
    assert (ended.code, ended.tail) == (17, b"first\ndying words\n")
    assert await sandbox.logs(tail=1) == b"dying words\n"
    assert list(await provider.find(str(sandbox.ref.key))) == []
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.ref)
    await provider.delete(sandbox.ref)
    await provider.aclose()


async def test_a_public_port_is_a_tunnel(modal: Modal) -> None:
    provider = await modal.provider()
    sandbox = await modal.create(
        provider,
        exposure="public",
        ports=[9000, PortSpec(number=9001, protocol="tcp"), {"number": 9002, "visibility": "private"}],
    )
    opened = [(port.port, port.unencrypted) for port in modal.face.records[sandbox.ref.id].definition.open_ports.ports]
    assert opened == [(8000, False), (9000, False), (9001, True)]
    for one in (sandbox, await provider.attach(sandbox.ref)):
        endpoint = await one.endpoint(8000)
        assert (endpoint.public, endpoint.headers, endpoint.url[:18]) == (True, {}, "https://127.0.0.1:")
        async with httpx.AsyncClient(trust_env=False, verify=ssl.create_default_context()) as client:
            for _ in range(100):
                try:
                    assert (await client.get(f"{endpoint.url}/health")).status_code == 200
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
            else:
                pytest.fail("the tunnel leads nowhere")
        assert (await one.endpoint(9001)).url.startswith("http://127.0.0.1:")
        assert not (await one.endpoint(9002)).public
        assert "openenv-tunnels" not in one.info.labels
    await provider.delete(sandbox.ref)
    with pytest.raises(SandboxGone):
        await sandbox.endpoint(8000)
    await provider.aclose()


async def test_private_tcp_is_refused_before_anything_exists(modal: Modal) -> None:
    provider = await modal.provider()
    spec = modal.spec(ports=[PortSpec(number=9001, protocol="tcp")])
    with pytest.raises(CapabilityError, match="tunnel that anyone may use") as caught:
        provider.fit(spec, await modal.image("light"))
    assert caught.value.field == "ports[9001].visibility"
    assert modal.names() == []


async def test_one_lost_reply_makes_no_second_sandbox(modal: Modal) -> None:
    """The SDK asks again by itself; the name makes that fail, and what the first request made is taken over."""
    provider = await modal.provider()
    await modal.create(provider)
    lost = modal.engine.faults.add("create", when="after", status=0)
    face = modal.face
    face.calls.forgets = True
    sandbox = await modal.create(provider)
    assert lost.hits == 1
    assert modal.engine.alive() == 2
    assert modal.names().count("SandboxCreateV2") == 3
    assert [ref.id for ref in await provider.find(str(sandbox.ref.key))] == [sandbox.ref.id]
    await provider.aclose()


@pytest.mark.parametrize("heeds", [True, False])
async def test_the_image_s_user_whatever_modal_does_with_it(modal: Modal, heeds: bool) -> None:
    from openenv_providers.modal import ModalProvider

    from openenv_sandbox import launch

    face = modal.face

    face.heeds_user = heeds
    async with launch(modal.engine.image("user-env"), provider=ModalProvider) as env:
        seen = (await env.reset()).observation
        assert (seen["uid"], seen["starts"], seen["cwd"], seen["mark"]) == (1000, 1, "/srv", "from the image")
        assert (await env.sandbox.exec("id -u")).text() == "1000\n"


async def test_a_listing_of_many_pages(modal: Modal) -> None:
    provider = await modal.provider()
    made = [await modal.create(provider, labels={"group": "g"}) for _ in range(7)]
    listed = [info async for info in provider.list({"group": "g"})]
    assert sorted(info.ref.id for info in listed) == sorted(one.ref.id for one in made)
    assert all(info.labels["group"] == "g" and info.ref.key == info.labels["oe-key"] for info in listed)
    assert modal.names().count("SandboxListV2") == 3
    modal.face.vanished.add(made[0].ref.id)
    assert len([info async for info in provider.list({"group": "g"})]) == 6
    await provider.aclose()


async def test_being_told_to_wait_is_not_waited_out_by_the_sdk(modal: Modal) -> None:
    provider = await modal.provider()
    await modal.create(provider)
    for rule, kind, wait in (
        ({"status": 429, "retry_after": 99.0}, RateLimited, 99.0),
        ({"status": 402}, QuotaExceeded, None),
    ):
        told = modal.engine.faults.add("create", **rule)
        with pytest.raises(kind) as caught:
            await asyncio.wait_for(modal.create(provider), 30)
        assert (told.hits, getattr(caught.value, "retry_after", None)) == (1, wait)
    await provider.aclose()


async def test_a_service_that_is_not_there(modal: Modal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would try for 63 seconds; the option bounds it."""
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")
    provider = await modal.provider(timeout_s=0.5)
    with pytest.raises(ProviderUnavailable) as caught:
        await asyncio.wait_for(provider.find("oe-1-1"), 20)
    assert (caught.value.outcome, caught.value.retryable) == ("failed", True)
    await provider.aclose()


async def test_the_caller_s_own_errors_stay_its_own(modal: Modal) -> None:
    from openenv_sandbox.testing.suite_raw import raw

    async def words() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("of the iterator")

    def sink(name: str, data: bytes) -> None:
        raise KeyError("of the sink")

    provider = await modal.provider()
    sandbox = await modal.create(provider)
    with pytest.raises(ValueError, match="of the iterator"):
        await raw(sandbox, "/bin/sh", "-c", "cat", stdin=words())
    with pytest.raises(KeyError, match="of the sink"):
        await raw(sandbox, "/bin/sh", "-c", "echo x; sleep 30", sink=sink)
    # A command that reads none of its input is none of that input's business.
    result, _, _ = await raw(sandbox, "/bin/sh", "-c", "exec 0<&-; exit 4", stdin=b"x" * 3_000_000)
    assert result.exit_code == 4
    await provider.delete(sandbox.ref)
    await provider.aclose()


@pytest.mark.parametrize(
    ("status", "ours", "outcome", "retryable"),
    [
        ("UNAUTHENTICATED", "AuthError", "failed", False),
        ("PERMISSION_DENIED", "AuthError", "failed", False),
        ("NOT_FOUND", "NotThere", "failed", False),
        ("INVALID_ARGUMENT", "ProviderError", "failed", False),
        ("UNIMPLEMENTED", "ProviderError", "failed", False),
        ("RESOURCE_EXHAUSTED", "RateLimited", "failed", True),
        ("UNAVAILABLE", "ProviderUnavailable", "unknown", True),
        ("DEADLINE_EXCEEDED", "ProviderError", "unknown", True),
        ("INTERNAL", "ProviderError", "unknown", True),
        ("UNKNOWN", "ProviderError", "unknown", True),
    ],
)
def test_every_status_has_a_place(status: str, ours: str, outcome: str, retryable: bool) -> None:
    from grpclib import GRPCError, Status
    from modal._grpc_client import grpc_error_to_modal_exception
    from openenv_providers._modal_account import translate

    theirs = grpc_error_to_modal_exception(GRPCError(Status[status], "said so"))
    error = translate(theirs, what="asking", started=True)
    assert (type(error).__name__, error.outcome, error.retryable) == (ours, outcome, retryable)
    assert (error.message, error.provider) == ("asking: said so", "modal")


def test_what_modal_says_is_masked() -> None:
    """Mutation: its text becomes ours as it is"""
    import modal.exception
    from openenv_providers._modal_account import translate

    redact.register("s3cret-canary")
    try:
        error = translate(modal.exception.InvalidError("bad \x1b[31ms3cret-canary"), what="asking")
    finally:
        redact.forget("s3cret-canary")
    assert "canary" not in error.message
    assert "\x1b" not in error.message


async def test_giving_up_at_any_moment_leaves_no_connection(modal: Modal) -> None:
    # A task inside the SDK may end with "no such app" after its caller has left; this is about connections.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    for step in range(15):
        provider = await modal.provider()
        task = asyncio.ensure_future(provider.find("oe-1-1"))
        await asyncio.sleep(0.002 * step)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await provider.aclose()
        await provider.aclose()
    for _ in range(100):
        if not any(service.connected() for service in modal.face.services):
            return
        await asyncio.sleep(0.02)
    pytest.fail("connections that nobody closes")


def test_login_is_looked_for_without_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openenv_providers.modal import ModalProvider

    file = tmp_path / "modal.toml"
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(file))
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_PROFILE", "MODAL_OAUTH_REFRESH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    check = ModalProvider.check()
    assert (check.ready, "MODAL_TOKEN_ID" in check.reason, "modal token new" in check.hint) == (False, True, True)
    file.write_text('[work]\ntoken_id = "ak-1"\ntoken_secret = "as-1"\nactive = true\n[half]\ntoken_id = "ak-2"\n')
    assert ModalProvider.check().ready
    assert not ModalProvider.check({"profile": "half"}).ready
    assert "'none'" in ModalProvider.check({"profile": "none"}).reason
    file.write_text("not toml [")
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-1")
    assert not ModalProvider.check().ready
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-1")
    assert ModalProvider.check().ready


_MANNERS = """
import asyncio, json, os, signal, sys, threading
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
import openenv_providers.modal
assert "modal" not in sys.modules
from openenv_providers.modal import ModalProvider
provider = ModalProvider({})
assert "modal" in sys.modules
after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
threads = [thread.name for thread in threading.enumerate()]
async def main():
    return [ref.id for ref in await provider.find("oe-1-1")]
found = asyncio.run(main())
pid = os.fork()
if pid == 0:
    again = asyncio.run(main())
    os._exit(0 if again == [] else 3)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps({"signals": before == after, "threads": threads, "found": found, "child": code}))
"""


def test_manners_of_the_sdk(modal: Modal) -> None:
    """Importing starts no thread and takes no signal; a forked child has a connection of its own; the exit is clean."""
    done = subprocess.run(
        [sys.executable, "-c", _MANNERS], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    # The SDK warns of its own accord that a later version leaves Python 3.10 behind.
    noise = [line for line in done.stderr.splitlines() if "Python 3.10 is EOL" not in line]
    assert (done.returncode, noise) == (0, [])
    said = json.loads(done.stdout)
    assert said == {"signals": True, "threads": ["MainThread"], "found": [], "child": 0}
