"""Contract suite: a whole launch on the backend: nothing left behind, nothing shown, whatever happens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from openenv_sandbox.errors import OpenEnvError, ServerExited
from openenv_sandbox.exec_server import found
from openenv_sandbox.journal import Journal
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase, Fault

if TYPE_CHECKING:
    from openenv_sandbox.client import GenericEnvClient
    from openenv_sandbox.events import Event

# The callback never returns, so the victim stands exactly there: after the intent, before the request.
_VICTIM = """
import asyncio, importlib, json, sys, time
from openenv_sandbox import launch
asked = json.loads(sys.argv[1])
module, _, name = asked["provider"].partition(":")
def on_event(event):
    print(event.stage, flush=True)
    if event.stage == asked["stop_at"]:
        time.sleep(3600)
async def main():
    provider = getattr(importlib.import_module(module), name)
    await launch(asked["image"], provider=provider, options=asked["options"], on_event=on_event, **asked["spec"])
asyncio.run(main())
"""
STAGES = ("building", "creating", "created", "starting", "ready")


class LaunchContract(ContractBase):
    """`openenv_sandbox.launch` on this backend."""

    @pytest.fixture
    def state_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A journal of this test's own."""
        folder = tmp_path / "state"
        monkeypatch.setenv("OPENENV_STATE_DIR", str(folder))
        return folder

    def asked(self, bench: Bench, events: list[Event], **more: Any) -> tuple[str, dict[str, Any]]:
        """The image and keywords of a launch; skips where nothing can be launched."""
        case = bench.case
        self.hook(case.serves, "a served environment")
        self.needs(bench.caps.ports != "none", "ports")
        image = case.image if isinstance(case.image, str) else case.image.ref
        fields = {"provider": case.provider, "options": case.options, "on_event": events.append, **case.spec, **more}
        return image, fields

    async def nothing_left(self, bench: Bench, events: list[Event]) -> None:
        """No sandbox of these events exists."""
        keys = {event.key for event in events if event.key}
        assert keys
        bench.keys += keys

        async def none() -> bool:
            found = [info.ref.id for key in keys async for info in bench.provider.list({"oe-key": key})]
            return not found and not any([await bench.provider.find(key) for key in keys])

        await bench.until("every sandbox of the launch is gone", none)

    async def test_launch(self, bench: Bench, state_folder: Path) -> None:
        """A launch gives a client that steps; afterwards no sandbox and no row of the journal is left."""
        from openenv_sandbox import launch

        events: list[Event] = []
        image, fields = self.asked(bench, events)
        async with launch(image, **fields) as client:
            await client.reset(**bench.case.reset)
            await client.step(dict(bench.case.action))
            assert client.sandbox.ref.provider == bench.case.provider.name
        assert [event.stage for event in events if event.stage in ("created", "ready", "connected", "stopped")] == [
            "created",
            "ready",
            "connected",
            "stopped",
        ]
        await self.nothing_left(bench, events)

        async def no_rows() -> bool:
            return not await (await Journal.open()).rows()

        await bench.until("the journal is empty", no_rows)

    @pytest.mark.parametrize("stage", STAGES)
    @pytest.mark.parametrize("mode", ["scope", "cancel", "double"])
    async def test_launch_cancelled(self, bench: Bench, state_folder: Path, stage: str, mode: str) -> None:
        """Cancelled at any stage, by a scope, natively, or twice: nothing is left."""
        from openenv_sandbox import launch

        scope, task, events, hit = anyio.CancelScope(), None, list[Any](), asyncio.Event()
        image, fields = self.asked(bench, events)

        def on_event(event: Event) -> None:
            events.append(event)
            if event.stage != stage or hit.is_set():
                return
            hit.set()
            if mode == "scope":
                scope.cancel()
            elif task is not None:
                task.cancel()
                if mode == "double":
                    asyncio.get_running_loop().call_later(0.01, task.cancel)

        async def work() -> None:
            with scope:
                client = await launch(image, **{**fields, "on_event": on_event})
                # Cancelled at the very last moment, a launch may still have succeeded.
                try:
                    await asyncio.sleep(HANG_S)
                finally:
                    with anyio.CancelScope(shield=True):
                        await client.close()

        task = asyncio.ensure_future(work())
        done, _ = await asyncio.wait({task}, timeout=2 * HANG_S)
        assert done, "the cancelled launch goes on"
        assert hit.is_set()
        assert task.cancelled() or task.exception() is None
        await self.nothing_left(bench, events)

    async def test_attach_after_detach(self, bench: Bench, state_folder: Path) -> None:
        """A sandbox that was left goes on; whoever attaches finds its server and its output."""
        from openenv_sandbox import attach, registry, sandbox

        self.needs(bench.caps.attach, "attach")
        events: list[Event] = []
        image, fields = self.asked(bench, events)
        box = await sandbox(image, **fields)
        try:
            client: GenericEnvClient = await box.client()
            await client.reset(**bench.case.reset)
            await client.close()
            if bench.caps.start == "exec":

                async def noted() -> bool:
                    return await found(box) is not None

                await bench.until("the server is noted in the sandbox", noted)
        finally:
            await box.detach()
        with registry.registered(bench.case.provider):
            async with attach(box.ref, options=bench.case.options) as again:
                client = await again.client()
                await client.reset(**bench.case.reset)
                await client.close()
                if bench.caps.start == "exec" or bench.caps.logs:
                    assert isinstance(await again.logs(tail=5), bytes)
                if bench.caps.start == "exec":
                    assert await found(again) is not None
        await self.nothing_left(bench, events)

    async def test_launch_server_dies(self, bench: Bench, state_folder: Path) -> None:
        """A server that ends at once is told with its exit code and last words; nothing is left."""
        from openenv_sandbox import launch

        self.hook(bench.case.dying is not None, "a server that ends")
        events: list[Event] = []
        image, fields = self.asked(bench, events, **dict(bench.case.dying or {}))
        with pytest.raises(ServerExited, match="dying words") as caught:
            await launch(image, **fields)
        assert caught.value.exit_code == 17
        await self.nothing_left(bench, events)

    async def test_launch_hides_secrets(
        self, bench: Bench, state_folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A secret is in no log, event, error, repr, pickle, journal or command line."""
        from openenv_sandbox import launch

        canary = "s3kret-canary"
        events: list[Event] = []
        shown: list[Any] = []
        secrets = {"OE_SECRET": canary}
        image, fields = self.asked(bench, events, secrets=secrets)
        with caplog.at_level(logging.DEBUG):
            async with launch(image, **fields) as client:
                await client.reset(**bench.case.reset)
                shown += [repr(client), repr(client.sandbox), repr(client.sandbox.info), await _command_lines()]
                if bench.caps.exec is not None:
                    result = await client.sandbox.exec("env; cat /proc/self/environ")
                    shown += [repr(result), result.stdout]
                files = await asyncio.to_thread(_files, state_folder)
                shown += [data for name, data in files.items() if "state" not in Path(name).name]
            if bench.case.dying is not None and bench.caps.start == "command":
                command = 'echo "dying words $OE_SECRET"; exit 17'
                image, fields = self.asked(bench, events, secrets=secrets, command=command)
                with pytest.raises(OpenEnvError) as caught:
                    await launch(image, **fields)
                error = caught.value
                shown += [
                    str(error),
                    repr(error),
                    repr(vars(error)),
                    pickle.dumps(error),
                    getattr(error, "__notes__", ""),
                ]
        shown += [repr(events), caplog.text, repr([vars(record) for record in caplog.records])]
        for item in shown:
            assert canary not in (item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item))
        await self.nothing_left(bench, events)

    @pytest.mark.parametrize("point", ["intent", "request", "reply"])
    async def test_kill_9(self, bench: Bench, state_folder: Path, point: str) -> None:
        """Killed after the intent, after the request left, or before the reply is read: the next one cleans up."""
        from openenv_sandbox import reaper

        case = bench.case
        self.hook(case.child, "a provider that another process can make")
        image, _ = self.asked(bench, [])
        hold = self.hold(bench, point)
        asked = {
            "provider": case.child,
            "options": case.options if case.child_options is None else case.child_options,
            "image": image,
            "spec": dict(case.spec),
            "stop_at": "building" if point == "intent" else "",
        }
        victim = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _VICTIM,
            json.dumps(asked),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "OPENENV_STATE_DIR": str(state_folder)},
        )
        try:
            assert victim.stdout is not None
            if hold is None:
                assert await asyncio.wait_for(victim.stdout.readline(), HANG_S) == b"building\n"
            else:
                await hold.reached(HANG_S)
        finally:
            victim.kill()
            await victim.communicate()
        journal = await Journal.open()
        rows = await journal.rows()
        assert [(row.state, row.alive) for row in rows] == [("intent", False)]
        key = rows[0].key
        bench.keys.append(key)
        if hold is not None:
            hold.release()

            async def there() -> bool:
                return bool(await bench.provider.find(key))

            await bench.until("the sandbox of the lost request appears", there)

        async def reaped() -> bool:
            await reaper.reap(bench.provider, journal)
            listed = [info async for info in bench.provider.list({"oe-key": key})]
            return not listed and not await bench.provider.find(key)

        await bench.until("the next process has removed it", reaped)

    def hold(self, bench: Bench, point: str) -> Fault | None:
        """What keeps the create request at ``point``."""
        if point == "intent":
            return None
        self.needs(bench.caps.findable != "none", "findable")
        if bench.case.hold is not None:
            fault = bench.case.hold(point)
            self.hook(fault is not None, f"holding the {point} of create")
            return fault
        self.hook(bench.case.faults is not None, "fault injection")
        assert bench.case.faults is not None
        return bench.case.faults.add("create", when="before" if point == "request" else "after", hang=True)


async def _command_lines() -> bytes:
    return await asyncio.to_thread(lambda: b"\n".join(_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")))


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): _read(path) for path in folder.rglob("*") if path.is_file()}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
