"""The proof that every emulated backend gives: the contract suite and what a suite for all cannot ask.

A backend's test module, ``tests/emulators/test_NAME.py``, holds one class:

    class TestDaytona(EmulatorProof):
        @pytest.fixture
        def emulated(self, engine: Engine) -> Iterator[Emulated]:
            face = DaytonaFace(engine)
            with Front(engine, face) as front:
                yield Emulated(engine, front, face, DaytonaProvider, env={"DAYTONA_API_URL": front.url, ...}, ...)

`tests/emulators/mini` is the smallest example. `Emulated` has these fields:

- ``engine``, ``front``, ``face``: as made above. ``face.upgrades`` counts the WebSocket upgrades that passed the port
  proxy by (sandbox id, port, token label); the label is "" only where the vendor has no port token.
- ``provider``: the class. ``options``: plain values, also for child processes (``child_options`` where those differ).
- ``env``: the vendor's own variables, set for each test and for its child processes. SDKs are redirected by these and
  by options that the vendor offers, never by replacing anything in them (`test_unpatched.py` looks).
- ``spec``: fields of every launch, such as ``{"exposure": "public"}`` where the vendor has no private ports.
- ``light``, ``echo``, ``user_env``: refs, by default the engine's images "light", "echo-env" and "user-env".
- ``missing``: a ref that does not exist, by default one in the engine's registry; None where none can be.
- ``wrong_auth``: variables with a bad credential, or a sentence why there is none.
- ``wrong_token``: makes an endpoint's port token wrong; None replaces the end of every header; or a sentence why the
  vendor has no port token.
- ``expire(box)``: the emulator accepts no port token told so far for the box, and cuts its open WebSockets by
  ``front.cut(box)`` (the next request for an endpoint gives a new token); or a sentence why tokens do not expire there.
- ``may_block``: `MayBlock` exemptions, each with a reason. ``dists``: distributions whose files are checked, by default
  those that hold ``provider.sdk``. ``skip``: as in `ProviderCase`, with reasons, for tests that do not apply.

The face calls ``await engine.hook(op, "before" | "after", **args)`` once each for: ``create``, ``delete``, ``info``
(one sandbox looked up), ``find`` (a listing filtered by our key, label ``oe-key``), ``list`` (any other), ``exec``.
A vendor whose listings have no filter has one request for both ops: its face calls both hooks around each request.
Where the vendor's refusal at ``engine.quota`` is a wait rather than an end, the provider raises `RateLimited` for it.
The engine's box ids are the ids in the provider's refs. A long step is
the light server's action ``{"sleep": SECONDS}``.

What is checked around every test, the contract suite's included: no blocking call on the loop (`proof_guard`), every
fault was hit, no sandbox is left. ``tests/expected.toml`` says what the SDK can do; ``test_mutant`` (full) breaks the
provider on purpose and wants this proof to notice.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from openenv_sandbox import _slots
from openenv_sandbox.testing.case import HANG_S
from openenv_sandbox.testing.suite import ProviderCase, ProviderContract
from tests.emulators.proof_faults import FaultProof
from tests.emulators.proof_guard import BlockingGuard, MayBlock, SdkFiles
from tests.emulators.proof_launch import LaunchProof
from tests.emulators.proof_many import ManyProof
from tests.emulators.proof_mutants import MUTANTS, VARIABLE, mutated
from tests.emulators.proof_sdk import SdkProof
from tests.emulators.proof_stage import DYING, ECHO, Emulated, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DYING", "ECHO", "Emulated", "EmulatorFixtures", "EmulatorProof", "MayBlock", "Stage"]


class EmulatorFixtures:
    """What stands around every test. Needs a fixture ``emulated``."""

    pytestmark: ClassVar[Any] = [pytest.mark.anyio, pytest.mark.emulator]

    @pytest.fixture
    def emulated(self) -> Emulated:
        """Overridden by the subclass."""
        raise pytest.UsageError("this class needs a fixture `emulated`")

    @pytest.fixture
    def around(self, emulated: Emulated, monkeypatch: pytest.MonkeyPatch, sdk_files: SdkFiles) -> Iterator[Stage]:
        """The vendor's variables and files, a clean start, and the look at what is left."""
        sdk_files.use(emulated.provider, emulated.dists)
        for name, value in emulated.env.items():
            monkeypatch.setenv(name, value)
        emulated.provider = mutated(emulated.provider)
        _slots._gates.clear()
        stage = Stage(emulated)
        yield stage
        finish(stage)

    @pytest.fixture
    def provider_case(self, around: Stage) -> ProviderCase:
        """The contract suite's view."""
        return around.emulated.case()

    @pytest.fixture
    def stage(self, around: Stage, request: pytest.FixtureRequest) -> Stage:
        """The proof's view."""
        for name in (request.node.name, request.node.name.partition("[")[0]):
            if name in around.emulated.skip:
                pytest.skip(f"declined: {around.emulated.skip[name]}")
        return around

    @pytest.fixture(autouse=True)
    def guarded(self, around: Stage) -> Iterator[None]:
        """Nothing blocks the loop, or it is on the list of exemptions."""
        with BlockingGuard(around.emulated.may_block) as guard:
            yield
        assert guard.found == []


class EmulatorProof(EmulatorFixtures, LaunchProof, FaultProof, ManyProof, SdkProof, ProviderContract):
    """Everything."""

    pytestmark: ClassVar[Any] = [pytest.mark.anyio, pytest.mark.emulator]

    @pytest.mark.full
    @pytest.mark.parametrize("mutant", sorted(MUTANTS))
    async def test_mutant(self, around: Stage, mutant: str, request: pytest.FixtureRequest) -> None:
        """A provider that is broken in this way fails the test that is about it."""
        broken = MUTANTS[mutant]
        if not broken.applies(around.emulated):
            pytest.skip("declined: the backend has nothing of that kind")
        node = f"{request.node.nodeid.rpartition('::')[0]}::{broken.test}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", node, "-q", "-p", "no:cacheprovider", "--tb=line", "--show-capture=no"),
            cwd=request.config.rootpath,
            env={**os.environ, VARIABLE: mutant},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 5 * HANG_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = said.decode(errors="replace")
        assert process.returncode == 1, f"{broken.test} did not notice it:\n{text}"
        assert f"FAILED {node.partition('[')[0]}" in text or f"ERROR {node.partition('[')[0]}" in text, text


def finish(stage: Stage) -> None:
    """No fault is unused and no sandbox is left; whatever is left is removed for the next test."""
    engine = stage.engine
    unused = stage.unused()
    engine.faults.clear()
    engine.quota = None
    left = [f"{box.id} ({box.labels})" for box in stage.boxes()]
    for box in stage.boxes():
        engine.call(engine.delete(box.id))
    assert unused == [], "faults that nothing ran into"
    assert left == [], "sandboxes that are left"
