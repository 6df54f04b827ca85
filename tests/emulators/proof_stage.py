"""What every part of the proof shares: the emulated backend, and a stage to launch on it and look at what exists."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from openenv_sandbox import launch, sandbox
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing import case
from openenv_sandbox.testing.case import Fault, FaultHook, ProviderCase
from openenv_sandbox.testing.faults import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from openenv_sandbox import Endpoint
    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import SandboxProvider
    from tests.emulators.proof_guard import MayBlock

ECHO = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "through the port url"}}
HANG_S = 10.0 if os.environ.get("PROOF_MUTANT") else case.HANG_S
"""Tells a hang from slowness; a provider that is broken on purpose does hang."""

DYING = {"command": ("/bin/sh", "-c", "echo dying words; exit 17")}


@dataclass
class Emulated:
    """One backend with its emulator; the text at the top of ``proof.py`` says what each field is for."""

    engine: Any
    front: Any
    face: Any
    provider: type[SandboxProvider]
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    light: str = ""
    echo: str = ""
    user_env: str = ""
    action: Mapping[str, Any] = field(default_factory=lambda: {"message": "hi"})
    long_action: Mapping[str, Any] = field(default_factory=lambda: {"sleep": 600})
    missing: str | None = ""
    child: str = ""
    child_options: Mapping[str, Any] | None = None
    wrong_auth: Mapping[str, str] | str = "said by nobody"
    wrong_token: Callable[[Endpoint], Endpoint] | str | None = None
    expire: Callable[[Any], None] | str = "said by nobody"
    may_block: Sequence[MayBlock] = ()
    dists: Sequence[str] = ()
    gone_s: float = 15.0
    skip: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.light = self.light or self.engine.image("light")
        self.echo = self.echo or self.engine.image("echo-env")
        self.user_env = self.user_env or self.engine.image("user-env")
        if self.missing == "":
            self.missing = f"{self.engine.registry}/certainly-not-there:0"
        self.child = self.child or f"{self.provider.__module__}:{self.provider.__qualname__}"

    def case(self) -> ProviderCase:
        """For the contract suite."""
        return ProviderCase(
            self.provider,
            image=self.light,
            options=dict(self.options),
            spec=dict(self.spec),
            action=dict(self.action),
            dying=DYING,
            missing=self.missing,
            faults=self.engine.faults,
            alive=self.engine.alive,
            gone_s=self.gone_s,
            child=self.child,
            child_options=dict(self.options if self.child_options is None else self.child_options),
            skip=self.skip,
        )


class Stage:
    """Launches on one emulated backend, seen from the emulator.

    Args:
        emulated: The backend.
        provider: The provider class; a mutant of it, where a test shows that the proof would notice.
    """

    def __init__(self, emulated: Emulated, provider: type[SandboxProvider] | None = None) -> None:
        self.emulated, self.engine = emulated, emulated.engine
        self.provider = provider or emulated.provider
        self.faults: FaultHook = emulated.engine.faults
        self.counters: list[Any] = []

    @property
    def caps(self) -> Capabilities:
        """What the provider declares."""
        return self.provider.capabilities

    def _fields(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "options": dict(self.emulated.options),
            **self.emulated.spec,
            **more,
        }

    def launch(self, image: str | None = None, **more: Any) -> Any:
        """A launch handle; the light server unless another image is named."""
        return launch(image or self.emulated.light, **self._fields(more))

    def sandbox(self, image: str | None = None, **more: Any) -> Any:
        """A sandbox handle."""
        return sandbox(image or self.emulated.light, **self._fields(more))

    async def make(self) -> SandboxProvider:
        """A provider, made as core makes it."""
        return await asyncio.to_thread(self.provider, dict(self.emulated.options))

    def count(self, op: str, **match: Any) -> Any:
        """A rule that changes nothing and counts the requests of one kind from now on."""
        self.counters.append(self.faults.add(op, times=None, **match))
        return self.counters[-1]

    def unused(self) -> list[Any]:
        """Faults that nothing ran into: a test that has one proves nothing."""
        return [rule for rule in self.engine.faults.unused() if not any(rule is counter for counter in self.counters)]

    def box(self, ref: Any) -> Any:
        """The emulator's sandbox of a ref."""
        return self.engine.boxes[ref.id]

    def boxes(self) -> list[Any]:
        """Every sandbox that exists."""
        return list(self.engine.boxes.values())

    async def way(self, env: Any) -> Endpoint:
        """The vendor's own way to the server of ``env``, without the token of ours that core adds."""
        way: Endpoint = await env.sandbox._sandbox.endpoint(8000)
        return way

    def upgrades(self) -> dict[tuple[str, int, str], int]:
        """WebSocket upgrades that passed the emulator's port proxy so far: (sandbox, port, token) to their number."""
        return dict(self.emulated.face.upgrades)

    async def until(self, what: str, probe: Callable[[], Awaitable[Any]], timeout: float = HANG_S) -> None:
        """Wait until the awaited ``probe()`` is true; the bound tells a hang from slowness."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not await probe():
            if loop.time() > deadline:
                pytest.fail(f"not within {timeout:g} s: {what}")
            await asyncio.sleep(0.02)

    async def nothing_left(self, timeout: float = HANG_S) -> None:
        """No sandbox exists at the emulator, and no row of the journal waits."""
        journal = await Journal.open()

        async def clean() -> bool:
            # Whoever deletes still closes what it used: a loop that ends under it leaves that open.
            busy = any(task.get_name() == "openenv-delete" for task in asyncio.all_tasks())
            return self.engine.alive() == 0 and not await journal.rows() and not busy

        await self.until("no sandbox and no row of the journal is left", clean, timeout)

    @contextlib.asynccontextmanager
    async def clock(self) -> AsyncIterator[FakeClock]:
        """Timers of the launcher and of the emulator move only by ``await clock.advance(seconds)`` (and real time)."""
        clock = FakeClock(self.engine.clock.now())

        def follow() -> None:
            behind = clock.time() - self.engine.clock.now()
            if behind > 0:
                self.engine.clock.advance(behind)

        clock.listeners.append(follow)
        token = CLOCK.set(clock)
        try:
            yield clock
        finally:
            CLOCK.reset(token)

    async def victim(self, program: str, **asked: Any) -> asyncio.subprocess.Process:
        """A child process with this test's environment, running ``program`` on a JSON of what it is asked."""
        text = {
            "provider": self.emulated.child,
            "options": dict(
                self.emulated.options if self.emulated.child_options is None else self.emulated.child_options
            ),
            "image": self.emulated.light,
            "spec": dict(self.emulated.spec),
            **asked,
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            json.dumps(text),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self.emulated.env},
        )


async def reached(fault: Fault) -> None:
    """Return when a call ran into ``fault``."""
    await fault.reached(HANG_S)
