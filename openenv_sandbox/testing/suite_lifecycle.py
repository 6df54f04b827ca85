"""Contract suite: create, find, attach, list, delete, and what stands behind a capability."""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from dataclasses import replace

import pytest
from pydantic import BaseModel

from openenv_sandbox.capabilities import isolation_satisfies
from openenv_sandbox.errors import (
    CapabilityError,
    ConfigError,
    ImageError,
    OpenEnvError,
    ProviderError,
    SandboxGone,
)
from openenv_sandbox.provider import Check, Prepared, SandboxProvider, SandboxRef
from openenv_sandbox.running import RunningSandbox
from openenv_sandbox.testing.case import HANG_S, Bench, ContractBase, DirectOwner, ProviderCase


async def listed(provider: SandboxProvider, **labels: str) -> list[str]:
    """Ids of what `SandboxProvider.list` shows."""
    return [info.ref.id async for info in provider.list({k.replace("_", "-"): v for k, v in labels.items()})]


class LifecycleContract(ContractBase):
    """A sandbox from create to delete."""

    def test_class_facts(self, provider_case: ProviderCase) -> None:
        """Listing works from the class alone."""
        cls = provider_case.provider
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cls.name)
        assert cls.title
        assert issubclass(cls.Options, BaseModel)
        assert cls.Options.model_config.get("extra") == "forbid"
        check = cls.check(provider_case.options)
        assert isinstance(check, Check)
        assert check.ready or (check.reason and check.hint)

    def test_unknown_option(self, provider_case: ProviderCase) -> None:
        """An unknown option is an error that names it; so is a malformed one."""
        with pytest.raises(ConfigError, match="no_such_option"):
            provider_case.provider({"no_such_option": 1})

    async def test_scope(self, bench: Bench) -> None:
        """The scope is stable, not empty, and the same for two providers with the same options."""
        other = await asyncio.to_thread(bench.case.provider, bench.case.options)
        assert bench.provider.scope() == bench.provider.scope() == other.scope() != ""
        await other.aclose()
        await other.aclose()

    async def test_create(self, bench: Bench) -> None:
        """A new sandbox has the name, scope, key and labels it was made with."""
        key = bench.key()
        sandbox = await bench.create(key=key, labels={"user-label": "Value.1"})
        ref, info = sandbox.ref, sandbox.info
        assert (ref.provider, ref.scope, ref.key) == (bench.case.provider.name, bench.provider.scope(), key)
        assert ref.id
        assert info.status in ("creating", "running", "stopped")
        assert isolation_satisfies(info.isolation, bench.caps.isolation) or info.isolation == bench.caps.isolation
        if bench.caps.labels != "journal":
            assert dict(info.labels).items() >= {**bench.labels(key), "user-label": "Value.1"}.items()

    async def test_refs_hold_no_secrets(self, bench: Bench) -> None:
        """What a ref needs to reattach is in no repr and no pickled error."""
        sandbox = await bench.create(secrets={"OE_SECRET": "s3kret-canary"})
        error = SandboxGone("gone", ref=sandbox.ref)
        shown = f"{sandbox.ref!r}{sandbox.info!r}{sandbox!r}{error}{pickle.dumps(error)!r}"
        for secret in ("s3kret-canary", *sandbox.ref.state.values()):
            assert secret not in shown

    async def test_find(self, bench: Bench) -> None:
        """The key leads back to the sandbox, and no other key does."""
        self.needs(bench.caps.findable != "none", "findable")
        key = bench.key()
        sandbox = await bench.create(key=key)
        assert [ref.id for ref in await bench.provider.find(key)] == [sandbox.ref.id]
        assert list(await bench.provider.find("oe-00000000-000000000000")) == []

    async def test_find_in_any_state(self, bench: Bench) -> None:
        """``lists_ended``: a sandbox whose server has ended is still found."""
        self.needs(bench.caps.findable != "none", "findable")
        self.needs(bench.caps.lists_ended, "lists_ended")
        self.needs(bench.caps.start == "command", "a command at create")
        self.hook(bench.case.dying is not None, "a server that ends")
        key = bench.key()
        sandbox = await bench.create(key=key, **dict(bench.case.dying or {}))
        await asyncio.wait_for(sandbox.wait_exit(), HANG_S)
        assert sandbox.ref.id in [ref.id for ref in await bench.provider.find(key)]

    async def test_same_key_twice(self, bench: Bench) -> None:
        """``dedupes_key``: a second create gives the same sandbox; without, find returns all."""
        key = bench.key()
        first = await bench.create(key=key)
        if bench.caps.dedupes_key:
            assert (await bench.create(key=key)).ref.id == first.ref.id
            assert len(await bench.provider.find(key)) == 1
            return
        try:
            second = await bench.create(key=key)
        except ProviderError:
            return
        assert {ref.id for ref in await bench.provider.find(key)} == {first.ref.id, second.ref.id}

    async def test_list(self, bench: Bench) -> None:
        """Listing selects by all labels given; ours and the user's can be read back."""
        self.needs(bench.caps.labels != "journal", "labels")
        one, two = bench.key(), bench.key()
        a = await bench.create(key=one, labels={"group": "g1"})
        b = await bench.create(key=two, labels={"group": "g1"})
        assert await listed(bench.provider, oe_key=one) == [a.ref.id]
        both = await listed(bench.provider, oe_run="contract0", group="g1")
        assert {a.ref.id, b.ref.id} <= set(both)
        assert await listed(bench.provider, oe_key=one, group="g2") == []
        infos = [info async for info in bench.provider.list({"oe-key": two})]
        assert infos[0].labels["oe-key"] == infos[0].ref.key == two

    async def test_attach(self, bench: Bench) -> None:
        """Another provider object takes the sandbox over by its ref."""
        self.needs(bench.caps.attach, "attach")
        sandbox = await bench.create()
        other = await asyncio.to_thread(bench.case.provider, bench.case.options)
        try:
            taken = await other.attach(sandbox.ref)
            assert taken.ref == sandbox.ref
            if bench.caps.exec is not None:
                face = RunningSandbox(
                    taken, provider=other, spec=bench.case.make_spec(), owner=DirectOwner(other, taken)
                )
                assert (await face.exec("echo here")).text() == "here\n"
            await taken.aclose()
            await taken.aclose()
        finally:
            await other.aclose()

    async def test_attach_missing(self, bench: Bench) -> None:
        """Attaching to what is gone says so."""
        self.needs(bench.caps.attach, "attach")
        sandbox = await bench.create()
        await bench.provider.delete(sandbox.ref)

        async def gone() -> bool:
            try:
                await bench.provider.attach(sandbox.ref)
            except SandboxGone:
                return True
            return False

        await bench.until("attach raises SandboxGone", gone)

    async def test_delete(self, bench: Bench) -> None:
        """A deleted sandbox is in no listing; deleting again, or what never was, succeeds."""
        key = bench.key()
        sandbox = await bench.create(key=key)
        await bench.provider.delete(sandbox.ref)
        await bench.provider.delete(sandbox.ref)
        await sandbox.delete()

        async def gone() -> bool:
            return not await bench.provider.find(key) and not await listed(bench.provider, oe_key=key)

        await bench.until("the sandbox is gone", gone)

    async def test_delete_leaves_others(self, bench: Bench) -> None:
        """Deleting one sandbox touches no other."""
        one, two = await bench.create(), await bench.create()
        await bench.provider.delete(one.ref)
        assert two.ref.id in [ref.id for ref in await bench.provider.find(two.ref.key or "")]

    async def test_delete_at_once(self, bench: Bench) -> None:
        """Two deletes at the same time both succeed."""
        sandbox = await bench.create()
        await asyncio.gather(bench.provider.delete(sandbox.ref), bench.provider.delete(sandbox.ref))

    async def test_missing_image(self, bench: Bench) -> None:
        """An image that does not exist is an ImageError, and nothing is left."""
        self.hook(bench.case.missing, "a missing image")
        from openenv_sandbox.image import parse

        key = bench.key()
        with pytest.raises(ImageError):  # noqa: PT012  # either of the two may say it
            image = await asyncio.to_thread(parse, bench.case.missing or "")
            prepared = await bench.provider.prepare(bench.case.make_spec(), image, on_log=lambda line: None)
            await bench.provider.create(prepared, bench.case.make_spec(labels={}), key=key)
        assert list(await bench.provider.find(key)) == []

    async def test_foreign_ref(self, bench: Bench) -> None:
        """A ref that names nothing is gone, not an internal error."""
        self.needs(bench.caps.attach, "attach")
        ref = SandboxRef(bench.case.provider.name, bench.provider.scope(), "oe-no-such-sandbox", "oe-0-0")
        with pytest.raises(SandboxGone):
            await bench.provider.attach(ref)
        await bench.provider.delete(ref)

    async def test_extend(self, bench: Bench) -> None:
        """``server-extendable``: the end moves later, never nearer; else extending is refused."""
        sandbox = await bench.create()
        if bench.caps.lifetime != "server-extendable":
            with pytest.raises(CapabilityError):
                await sandbox.extend(60)
            return
        far = await sandbox.extend(50_000)
        assert far > time.time() + 40_000
        assert await sandbox.extend(1_000) >= far - 1

    async def test_pause(self, bench: Bench) -> None:
        """``pause``: processes stand still and go on."""
        sandbox = await bench.create()
        if not bench.caps.pause:
            with pytest.raises(CapabilityError):
                await sandbox.pause()
            return
        running = bench.face(sandbox)
        process = await running.spawn("while :; do echo tick; sleep 0.05 2>/dev/null || sleep 1; done")

        async def ticks() -> bool:
            return b"tick" in await process.logs()

        await bench.until("the process ticks", ticks)
        await running.pause()
        assert [i.status async for i in bench.provider.list({"oe-key": sandbox.ref.key or ""})] in ([], ["paused"])
        await running.resume()
        before = len(await process.logs())

        async def more() -> bool:
            return len(await process.logs()) > before

        await bench.until("the process goes on", more)

    async def test_snapshot(self, bench: Bench) -> None:
        """``snapshot``: the files are there in what is booted from it, and dropping removes it."""
        running = await bench.run()
        if not bench.caps.snapshot:
            with pytest.raises(CapabilityError):
                await running.snapshot()
            return
        await running.write("kept-file", b"kept")
        kept = await running.snapshot()
        try:
            key = bench.key()
            spec = bench.case.make_spec(labels=bench.labels(key))
            prepared = await bench.prepare()
            again = bench.face(
                await bench.provider.create(kept if kept.image else _with(kept, prepared), spec, key=key)
            )
            assert await again.read("kept-file") == b"kept"
            await again.stop()
            assert kept.ref in [p.ref for p in await bench.provider.list_prepared()]
        finally:
            await bench.provider.drop(kept)
            await bench.provider.drop(kept)
        assert kept.ref not in [p.ref for p in await bench.provider.list_prepared()]

    async def test_errors_name_the_sandbox(self, bench: Bench) -> None:
        """An error about a sandbox carries its backend."""
        self.needs(bench.caps.attach, "attach")
        ref = SandboxRef(bench.case.provider.name, bench.provider.scope(), "oe-no-such-sandbox", "oe-0-0")
        with pytest.raises(OpenEnvError) as caught:
            await bench.provider.attach(ref)
        assert caught.value.provider == bench.case.provider.name
        assert caught.value.outcome in ("failed", "unknown")


def _with(kept: Prepared, prepared: Prepared) -> Prepared:
    return replace(kept, image=prepared.image)
