"""Sandboxes of E2B and Novita: streams that break, pauses, ends, ports, policies, and what the SDKs must not do."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox.errors import (
    CapabilityError,
    ConfigError,
    ExecError,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    SandboxGone,
)
from openenv_sandbox.provider import SandboxRef
from openenv_sandbox.testing.case import HANG_S
from tests.emulators.e2b_bench import Clouds, made, prepare, spec_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.emulators.proof import Stage


class Running:
    """A command in a sandbox, followed."""

    def __init__(self, sandbox: Any, script: str, stdin: Any = None) -> None:
        self.said = bytearray()
        self.news = asyncio.Event()
        self.task = asyncio.ensure_future(
            sandbox.exec_raw(
                ["/bin/sh", "-c", script], env={}, cwd="/", user=None, stdin=stdin, on_output=self._on_output
            )
        )

    def _on_output(self, name: str, data: bytes) -> None:
        self.said += data
        self.news.set()

    async def until(self, text: bytes) -> None:
        async def there() -> None:
            while text not in self.said:
                self.news.clear()
                await self.news.wait()

        await asyncio.wait_for(there(), HANG_S)

    async def ended(self) -> Any:
        return (await asyncio.wait_for(self.task, HANG_S)).exit_code


class TestLife(Clouds):
    async def test_stream_breaks(self, stage: Stage) -> None:
        """A command whose stream is cut is followed again, by its pid, to its exact exit code.

        Mutation: a broken stream ends the command, or starts it a second time
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        box, face = stage.box(sandbox.ref), stage.emulated.face
        running = Running(sandbox, "echo one; until [ -e /tmp/go ]; do sleep 0.05; done; echo two; exit 9")
        await running.until(b"one")
        for _ in range(3):
            stage.engine.call(face.envd.cut(box))

            async def followed() -> bool:
                return any(process.followers for process in list(box.data["processes"].values()))

            await stage.until("the process is followed again", followed)
        await Running(sandbox, ": >/tmp/go").ended()
        assert await running.ended() == 9
        assert running.said == b"one\ntwo\n"
        assert sum(head.path.endswith("/Start") for head in stage.emulated.front.requests) == 2
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_start_not_confirmed(self, stage: Stage) -> None:
        """The command was started and the connection cut before its pid was told: it is found by its tag.

        Mutation: it is started twice, or given up while it runs
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        stage.faults.add("exec", when="after", status=0)
        running = Running(
            sandbox, "echo x >>/tmp/runs; until [ -e /tmp/go ]; do sleep 0.05; done; cat /tmp/runs; exit 5"
        )

        async def followed() -> bool:
            return any(head.path.endswith("/Connect") for head in stage.emulated.front.requests)

        await stage.until("the process is followed by its tag", followed)
        await Running(sandbox, ": >/tmp/go").ended()
        assert (await running.ended(), bytes(running.said)) == (5, b"x\n")
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_daemon_not_up_yet(self, stage: Stage) -> None:
        """The proxy answers for a daemon that is not up: nothing was started, so the command is asked for again.

        Mutation: the first command of a young sandbox fails
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        refused = stage.faults.add("exec", status=502, times=2)
        running = Running(sandbox, "echo x >>/tmp/runs; cat /tmp/runs")
        assert (await running.ended(), bytes(running.said), refused.hits) == (0, b"x\n", 2)
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_sandbox_vanishes_under_a_command(self, stage: Stage) -> None:
        """The command ends at once, as that of a sandbox that is gone.

        Mutation: it is followed again for ever
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        running = Running(sandbox, "echo on; sleep 600")
        await running.until(b"on")
        stage.engine.call(stage.engine.delete(sandbox.ref.id))
        with pytest.raises(SandboxGone):
            await running.ended()
        await provider.aclose()

    async def test_pause_and_resume(self, stage: Stage) -> None:
        """A pause keeps the server and commands; renewing a lease meanwhile neither fails nor wakes it.

        Mutation: extend on a paused sandbox says that it is gone, or resume leaves the vendor's default end
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        running = Running(sandbox, "echo one; until [ -e /tmp/go ]; do sleep 0.05; done; echo two")
        await running.until(b"one")
        await sandbox.extend(7_000)
        await sandbox.pause()
        await sandbox.pause()
        again = await provider.attach(replace(sandbox.ref, state={}))
        assert again.info.status == "paused"
        await sandbox.extend(7_000)
        assert stage.box(sandbox.ref).state == "paused"
        before = len(stage.emulated.front.requests)
        await sandbox.resume()

        async def followed() -> bool:
            return any(head.path.endswith("/Connect") for head in stage.emulated.front.requests[before:])

        await stage.until("the process is followed again", followed)
        box = stage.box(sandbox.ref)
        assert box.state == "running"
        assert box.ends_at > stage.engine.clock.now() + 6_900
        await Running(sandbox, ": >/tmp/go").ended()
        assert await running.ended() == 0
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_attach_without_tokens(self, stage: Stage) -> None:
        """From the ref alone: commands and the private port work, and its end does not come nearer.

        Mutation: asking for the tokens sets the vendor's default end
        """
        provider, other = await stage.make(), await stage.make()
        sandbox = await made(provider, spec_of(stage))
        await sandbox.extend(7_000)
        taken = await other.attach(replace(sandbox.ref, state={}))
        assert await Running(taken, "exit 3").ended() == 3
        endpoint = await taken.endpoint(8000)
        assert list(endpoint.headers.values()) == [stage.box(sandbox.ref).data["traffic"]]
        assert stage.box(sandbox.ref).ends_at > stage.engine.clock.now() + 6_900
        await other.delete(taken.ref)
        await provider.aclose()
        await other.aclose()

    async def test_input(self, stage: Stage) -> None:
        """Megabytes go in, in order; a command that reads none of it ends all the same.

        Mutation: chunks overtake each other, or a closed stdin fails the command
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(5):
                yield bytes([number]) * 300_000

        running = Running(sandbox, "cat", stdin=pieces())
        assert await running.ended() == 0
        assert running.said == b"".join(bytes([number]) * 300_000 for number in range(5))
        assert await Running(sandbox, "exec <&-; exit 4", stdin=b"x" * 1_000_000).ended() == 4
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_commands_that_cannot_run(self, stage: Stage) -> None:
        """No such program, no such folder: errors that name it.

        Mutation: the daemon's refusal is retried as a broken stream
        """
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        calls: Any = {"env": {}, "user": None, "stdin": None, "on_output": lambda *_: None}
        with pytest.raises(ExecError, match="/no/such"):
            await sandbox.exec_raw(["/no/such"], cwd=None, **calls)
        with pytest.raises(ExecError, match="/no/folder"):
            await sandbox.exec_raw(["/bin/true"], cwd="/no/folder", **calls)
        await provider.delete(sandbox.ref)
        await provider.aclose()

    async def test_network(self, stage: Stage) -> None:
        """The policy arrives as the vendor's; what it cannot do is refused before.

        Mutation: an allow list without a deny list, or a policy that is dropped
        """
        provider = await stage.make()
        prepared = await prepare(provider, spec_of(stage))
        allow: dict[str, Any] = {"mode": "allowlist", "cidrs": ("10.0.0.0/8",)}
        rows: list[tuple[Any, bool, list[str] | None]] = [("full", True, None), ("none", False, None)]
        rows.append((allow, True, ["10.0.0.0/8"]))
        if "hosts" in provider.capabilities.network:
            rows.append(({**allow, "hosts": ("api.example.org",)}, True, ["10.0.0.0/8", "api.example.org"]))
        for number, (policy, internet, allowed) in enumerate(rows):
            key = f"oe-12345678-{number:012d}"
            sandbox = await provider.create(prepared, spec_of(stage, network=policy), key=key)
            data = stage.box(sandbox.ref).data
            assert data["internet"] is internet
            assert data["network"].get("allowOut") == allowed
            assert data["network"].get("denyOut") == (["0.0.0.0/0"] if allowed else None)
            await provider.delete(sandbox.ref)
        with pytest.raises(CapabilityError, match="network"):
            await stage.launch(network={"mode": "allowlist", "hosts": ("*.example.org",)})
        await provider.aclose()

    async def test_refused_in_html(self, stage: Stage) -> None:
        """A proxy in front of the service answers: the status and Retry-After count, not the text.

        Only what may have changed something has an unknown outcome.

        Mutation: the SDK's reading of the reply fails first, or a look is taken for a change
        """
        provider = await stage.make()
        stage.faults.add("find", status=429, message="<html>busy</html>", retry_after=3.0)
        with pytest.raises(RateLimited) as slow:
            await provider.find("oe-12345678-abcdefabcdef")
        assert slow.value.retry_after == 3.0
        stage.faults.add("find", status=502, message="<html>bad gateway</html>")
        with pytest.raises(ProviderError) as broken:
            await provider.find("oe-12345678-abcdefabcdef")
        assert (broken.value.outcome, broken.value.retryable) == ("failed", True)
        stage.faults.add("delete", status=502, message="<html>bad gateway</html>")
        with pytest.raises(ProviderError) as undecided:
            await provider.delete(SandboxRef(provider.name, provider.scope(), "inope"))
        assert (undecided.value.outcome, undecided.value.retryable) == ("unknown", True)
        await provider.aclose()

    async def test_longer_than_the_plan(self, stage: Stage) -> None:
        """What the option says is refused before; what only the service knows is the same error.

        Mutation: a refused lifetime is an error without a name
        """
        long: Any = {"timeouts": {"lifetime": 100_000.0}}
        with pytest.raises(CapabilityError) as before:
            await stage.launch(**long)
        stage.emulated.options = {**stage.emulated.options, "max_lifetime_s": 200_000}
        with pytest.raises(CapabilityError) as after:
            await stage.launch(**long)
        assert before.value.field == after.value.field == "timeouts.lifetime"
        assert after.value.outcome == "failed"

    async def test_public(self, stage: Stage) -> None:
        """Only where every port may be public the vendor's switch is used; then there is no token.

        Mutation: one public port opens the private ones too
        """
        mixed = [{"number": 9000, "visibility": "private"}]
        async with stage.launch(exposure="public", ports=mixed) as env:
            endpoint = await env.sandbox.endpoint()
            assert (endpoint.public, len(endpoint.headers) > 0) == (False, True)
        async with stage.launch(exposure="public") as env:
            await env.reset()
            endpoint = await env.sandbox.endpoint(9000)
            assert (endpoint.public, endpoint.headers) == (True, {})
            assert [token for (_, _, token) in stage.upgrades() if not token]

    async def test_debug_mode_is_refused(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """It invents sandboxes and leads to this machine: neither at the start nor later.

        Mutation: the variable is read once
        """
        provider, name = await stage.make(), f"{stage.provider.name.upper()}_DEBUG"
        monkeypatch.setenv(name, "true")
        with pytest.raises(ConfigError, match=name):
            await stage.make()
        assert not stage.provider.check({}).ready
        with pytest.raises((ConfigError, ProviderError), match=name):
            await provider.find("oe-12345678-abcdefabcdef")
        await provider.aclose()

    async def test_no_key(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a key the check and the first request say which variable is missing.

        Mutation: the SDK's AuthenticationException, which is none of its own errors, comes through
        """
        name = f"{stage.provider.name.upper()}_API_KEY"
        monkeypatch.delenv(name)
        assert name in stage.provider.check({}).reason
        provider = await stage.make()
        with pytest.raises(ProviderUnavailable, match="API key") as caught:
            await provider.find("oe-12345678-abcdefabcdef")
        assert name in str(caught.value.hint)
        await provider.aclose()

    async def test_other_accounts_are_other_scopes(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another key, domain or address is another scope, and no scope holds the key.

        Mutation: "not found" under one key closes the rows of another
        """
        name = stage.provider.name.upper()
        scopes = [(await stage.make()).scope()]
        monkeypatch.setenv(f"{name}_API_KEY", "another-key-0123456789")
        scopes.append((await stage.make()).scope())
        monkeypatch.delenv(f"{name}_API_URL")
        scopes.append((await stage.make()).scope())
        scopes.append(stage.provider({"domain": "self.example.org"}).scope())
        assert len(set(scopes)) == 4
        assert not any("another-key" in scope or stage.emulated.face.key in scope for scope in scopes)

    async def test_says_nothing(self, stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
        """The SDK prints nothing where nobody configured logging.

        Mutation: its log of 404 reaches the handler of last resort
        """
        handlers = logging.root.handlers[:]
        logging.root.handlers.clear()
        try:
            provider = await stage.make()
            with pytest.raises(SandboxGone):
                await provider.attach((await self._gone(stage)).ref)
            await provider.aclose()
        finally:
            logging.root.handlers[:] = handlers
        assert "".join(capfd.readouterr()) == ""

    async def _gone(self, stage: Stage) -> Any:
        provider = await stage.make()
        sandbox = await made(provider, spec_of(stage))
        await provider.delete(sandbox.ref)
        await provider.aclose()
        return sandbox


@pytest.mark.emulator
def test_older_domains_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the SDK's older protocol is used, which knows no private ports."""
    pytest.importorskip("novita_sandbox")
    from openenv_providers.novita import NovitaProvider, NovitaSdk

    monkeypatch.setenv("NOVITA_DOMAIN", "us-01.sandbox.novita.ai")
    with pytest.raises(ConfigError, match="older protocol"):
        NovitaProvider()
    from novita_sandbox.core.connection_config import LEGACY_NOVITA_DOMAINS

    assert set(LEGACY_NOVITA_DOMAINS) == NovitaSdk.legacy


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["e2b", "novita"])
def test_default_domain_is_the_sdks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the SDK moves, and our port addresses do not."""
    from importlib import import_module

    pytest.importorskip({"e2b": "e2b", "novita": "novita_sandbox"}[name])
    monkeypatch.delenv(f"{name.upper()}_DOMAIN", raising=False)
    module = import_module(f"openenv_providers.{name}")
    provider = getattr(module, f"{name.capitalize()}Provider")()
    assert provider.cloud.domain == provider.cloud.module("connection_config").ConnectionConfig(api_key="x").domain
