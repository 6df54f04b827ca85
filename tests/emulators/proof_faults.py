"""Proof: what the vendor does wrong costs nothing and poisons nothing. Every fault is made by the emulator."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import reaper
from openenv_sandbox.errors import (
    CleanupError,
    CreateTimeout,
    OpenEnvError,
    RateLimited,
    SandboxGone,
    SessionLost,
)
from openenv_sandbox.journal import Journal
from tests.emulators.proof_stage import HANG_S, Stage, reached

if TYPE_CHECKING:
    from openenv_sandbox.provider import SandboxProvider

WAITERS, CAP = 20, 4
# 16 places held by others, each waiter asks once in vain and then about once per place that comes free in its turn.
ATTEMPTS = 5 * WAITERS
DAY_S = 86_400.0

VICTIM = """
import asyncio, importlib, json, sys
from openenv_sandbox import launch
asked = json.loads(sys.argv[1])
module, _, name = asked["provider"].partition(":")
async def main():
    provider = getattr(importlib.import_module(module), name)
    env = await launch(asked["image"], provider=provider, options=asked["options"], **asked["spec"])
    print("ready", env.sandbox.ref.id, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


class FaultProof:
    """Lost replies, caps, failing deletes, deaths, timers, kills."""

    async def test_reply_lost(self, stage: Stage) -> None:
        """The create is done and its reply is lost: the launch goes on with that sandbox, and there is no second one.

        Scenario: A02
        Mutation: a create of unknown outcome is repeated, or given up while what it made runs on
        """
        created = stage.count("create")
        lost = stage.faults.add("create", when="after", status=0)
        if stage.caps.findable == "none" or not (stage.caps.attach or stage.caps.dedupes_key):
            with pytest.raises(OpenEnvError) as caught:
                await stage.launch()
            assert caught.value.outcome == "unknown"
            assert created.hits == 1
            stage.engine.clock.advance(DAY_S)
            return
        async with stage.launch() as env:
            await env.reset()
            assert lost.hits == 1
            assert len(stage.boxes()) == 1
            assert stage.caps.dedupes_key or created.hits == 1
        await stage.nothing_left()

    async def test_waiters_at_the_cap(self, stage: Stage) -> None:
        """Twenty want a sandbox where four may live: all get one in turn, and the vendor is not stormed.

        Scenario: I01, I04
        Mutation: a refusal at the cap is final, or each waiter asks again by itself, or SDK and core both repeat
        """
        created = stage.count("create")
        stage.engine.quota = CAP
        peak = 0

        async def one() -> None:
            nonlocal peak
            async with stage.sandbox(timeouts={"create": HANG_S}):
                peak = max(peak, len(stage.boxes()))

        done = await asyncio.gather(*(one() for _ in range(WAITERS)), return_exceptions=True)
        assert [error for error in done if error is not None] == []
        assert peak <= CAP
        assert WAITERS < created.hits <= ATTEMPTS, f"{created.hits} creates for {WAITERS} sandboxes"
        await stage.nothing_left()

    async def test_cap_outlasts_the_timer(self, stage: Stage) -> None:
        """No place comes free within the create timer: an error that says to wait, after few tries.

        Scenario: I01
        Mutation: the create timer does not bound the wait, or the SDK repeats by itself behind it
        """
        created = stage.count("create")
        stage.engine.quota = 0
        with pytest.raises((RateLimited, CreateTimeout)) as caught:
            await asyncio.wait_for(stage.launch(timeouts={"create": 3.0}), HANG_S)
        assert (caught.value.outcome, caught.value.retryable) == ("failed", True)
        assert 1 <= created.hits <= 8
        await stage.nothing_left()

    async def test_delete_fails_at_first(self, stage: Stage) -> None:
        """Two 5xx on delete are survived within the cleanup timer.

        Scenario: A08
        Mutation: a failed delete is taken for done
        """
        failed = stage.faults.add("delete", status=500, times=2)
        async with stage.launch():
            pass
        assert failed.hits == 2
        await stage.nothing_left()

    async def test_delete_keeps_failing(self, stage: Stage) -> None:
        """A delete that keeps failing is told, remembered, and completed by the next one who looks.

        Scenario: A08
        Mutation: the row is closed although the sandbox lives on
        """
        failed = stage.faults.add("delete", status=500, times=None)
        client = await stage.launch(timeouts={"cleanup": 1.0})
        with pytest.raises(CleanupError) as caught:
            await client.close()
        assert client.sandbox.ref.id in str(caught.value)
        assert stage.engine.alive() == 1
        journal = await Journal.open()
        assert [row.state for row in await journal.rows()] == ["pending_delete"]
        assert failed.hits >= 1
        failed.times = failed.hits  # type: ignore[attr-defined]
        await stage.nothing_left()

    async def test_vanishes_in_mid_episode(self, stage: Stage) -> None:
        """The sandbox is gone between two steps: the next step says so and which, and is no result.

        Scenario: B03
        Mutation: the death is taken for a timeout, or a new session is opened silently
        """
        client = await stage.launch()
        await client.reset()
        ref = client.sandbox.ref
        stage.engine.call(stage.engine.delete(ref.id))
        with pytest.raises((SandboxGone, SessionLost)) as caught:
            await asyncio.wait_for(client.step(dict(stage.emulated.action)), HANG_S)
        assert ref.id in f"{caught.value} {caught.value.ref}"
        await client.close()
        await stage.nothing_left()

    async def test_lifetime_ends_in_a_long_step(self, stage: Stage) -> None:
        """The vendor ends the sandbox while a step runs: the step ends at once, with the sandbox named.

        Scenario: B03, B09
        Mutation: the lifetime is not given to the vendor, or the step waits for its own deadline
        """
        if not stage.caps.lifetime.startswith("server"):
            pytest.skip("not declared: a lifetime that the backend ends")
        timers = {"ready": 60.0, "episode": 120.0, "margin": 60.0, "lifetime": 240.0, "step": None}
        async with stage.clock() as clock:
            client = await stage.launch(timeouts=timers)
            await client.reset()
            ref = client.sandbox.ref
            step = asyncio.ensure_future(client.step(dict(stage.emulated.long_action)))
            done, _ = await asyncio.wait({step}, timeout=0.3)
            assert not done
            await clock.advance(200.0)
            assert stage.engine.alive() == 1, "ended before its time"
            await clock.advance(40.0 + 61.0)  # sold by the minute
            assert stage.engine.alive() == 0, "lives on past its lifetime"
            with pytest.raises((SandboxGone, SessionLost)) as caught:
                await asyncio.wait_for(step, HANG_S)
            assert ref.id in f"{caught.value} {caught.value.ref}"
            await client.close()
        await stage.nothing_left()

    async def test_a_long_silence_and_a_dead_owner(self, stage: Stage) -> None:
        """Forty minutes without a call do not end an episode; without its owner the sandbox ends by itself.

        Scenario: A01, B01, B02
        Mutation: the vendor's idle timer is left at its default, or nothing ends the sandbox of a dead owner
        """
        if stage.caps.lifetime == "none":
            pytest.skip("not declared: an end by the backend")
        async with stage.clock() as clock:
            client = await stage.launch()
            await client.reset()
            for _ in range(80):
                await clock.advance(30.0)
            await client.step(dict(stage.emulated.action))
            await client.sandbox.aclose()  # as if its owner were killed: nothing is kept alive any more
            await client.disconnect()
            for _ in range(4):
                await clock.advance(DAY_S / 2)
            assert stage.engine.alive() == 0, "a dead owner's sandbox lives on"
            await (await Journal.open()).close(client.sandbox.ref.key)

    @pytest.mark.parametrize("point", ["request", "reply"])
    async def test_killed_child(self, stage: Stage, point: str) -> None:
        """A child is killed with its create received, or done and not answered: gc leaves nothing, whoever runs it.

        Scenario: A02, A04
        Mutation: the key is not sent with the create, or the journal is written after it
        """
        hold = stage.faults.add("create", when="before" if point == "request" else "after", hang=True)
        victim = await stage.victim(VICTIM)
        try:
            await reached(hold)
        finally:
            victim.kill()
            await victim.communicate()
        provider = await stage.make()
        try:
            journal = await Journal.open()
            (row,) = await journal.rows()
            assert (row.state, row.alive) == ("intent", False)
            if point == "request" and stage.caps.findable != "none":
                report = await reaper.gc(journal, providers=[provider])
                assert "may still appear" in report.kept[0].reason, "the request is still on its way"
            hold.release()

            async def made() -> bool:
                return stage.engine.alive() == 1  # type: ignore[no-any-return]

            await stage.until("the emulator makes what was asked for", made)
            if stage.caps.findable == "none":
                await told(stage, journal, provider)
                return
            await reaper.gc(journal, providers=[provider])
            assert stage.engine.alive() == 0
        finally:
            await provider.aclose()

    async def test_killed_owner_of_a_running_one(self, stage: Stage) -> None:
        """A child is killed with its sandbox ready: gc removes it, and leaves that of a living owner.

        Scenario: A04
        Mutation: gc removes whatever carries our labels, or nothing that has a ref
        """
        victim = await stage.victim(VICTIM)
        try:
            assert victim.stdout is not None
            said: Any = (await asyncio.wait_for(victim.stdout.readline(), HANG_S)).split()
        finally:
            victim.kill()
            await victim.communicate()
        assert said[0] == b"ready"
        async with stage.launch() as env:
            await env.reset()
            journal = await Journal.open()

            async def reaped() -> bool:
                provider = await stage.make()
                try:
                    await reaper.gc(journal, providers=[provider])
                finally:
                    await provider.aclose()
                return [box.id for box in stage.boxes()] == [env.sandbox.ref.id]

            await stage.until("the dead owner's sandbox is gone, the living one's is not", reaped)
            await env.step(dict(stage.emulated.action))
        await stage.nothing_left()


async def told(stage: Stage, journal: Journal, provider: SandboxProvider) -> None:
    """What cannot be looked up is reported with the time at which it ends by itself; then it does, and is forgotten."""
    report = await reaper.gc(journal, providers=[provider])
    assert "cannot be looked up; ends by itself at" in report.kept[0].reason
    (row,) = await journal.rows()
    assert row.expires_at is not None
    left = row.expires_at + row.settle_until - row.created_at - time.time()
    assert stage.engine.alive() == 1
    stage.engine.clock.advance(left)
    assert stage.engine.alive() == 0
    await reaper.gc(journal, providers=[provider], clock=lambda: time.time() + left + 1)
    assert await journal.rows() == []
