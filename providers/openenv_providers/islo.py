"""islo: microVMs whose ports are published by temporary shares.

A sandbox is addressed by its name, which carries our labels: islo stores none. Core starts the server.
"""

from __future__ import annotations

import asyncio
import math
import os
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from openenv_providers import _islo_gateway as gateway
from openenv_providers import _islo_values as values
from openenv_providers._islo_api import KEY, NAME, ONCE, SDK, Api, refused
from openenv_sandbox import backend_kit
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes
from openenv_sandbox.errors import CreateTimeout, ImageError, OpenEnvError, ProviderError, SandboxGone
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import Prepared, Sandbox, SandboxInfo, SandboxProvider, SandboxRef, Verified

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.provider import Image, LogSink
    from openenv_sandbox.spec import SandboxSpec

CONTROL, COMPUTE = "https://api.islo.dev", "https://ca.compute.islo.dev"
_PAGE = 100
_SNAPSHOT = "snapshot:"


class Options(ProviderOptions):
    """Where islo is, and what its sandboxes may use of the account."""

    base_url: str | None = trusted(description="Control plane, instead of ISLO_BASE_URL.")
    compute_url: str | None = trusted(description="Plane of the sandboxes, instead of ISLO_COMPUTE_URL.")


class IsloProvider(SandboxProvider):
    """islo."""

    name = NAME
    title = "islo"
    extra = NAME
    sdk = SDK
    env_vars = (KEY,)
    capabilities = Capabilities(
        images=frozenset({"ref", "snapshot"}),
        start="exec",
        runs_image=False,
        exec=ExecCapabilities(binary=False, stdin=False, stream=False, user=False),
        put=True,
        ports="any",
        exposure=frozenset({"public"}),
        network=frozenset({"full", "none", "hosts"}),
        isolation="vm",
        sizes=Sizes(cpus=values.CPUS, disk_mb=values.DISK_MB),
        user=False,
        lifetime="server-fixed",
        dedupes_key=True,
        labels="name",
        findable="name",
        pause=True,
        snapshot=True,
        logs=False,
    )
    Options = Options
    verified = Verified(
        "emulator", sdk="islo 0.3.20", date="2026-11-30", note="control plane, gateway and ports emulated"
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        control = self.options.base_url or os.environ.get("ISLO_BASE_URL") or CONTROL
        compute = self.options.compute_url or os.environ.get("ISLO_COMPUTE_URL") or COMPUTE
        # A key belongs to one account, whose name cannot be asked for without a request.
        account = sha256(os.environ.get(KEY, "").encode()).hexdigest()[:12]
        self.api = Api(control.rstrip("/"), compute.rstrip("/"), f"{compute.rstrip('/')} {account}")

    def scope(self) -> str:
        """The plane and a digest of the key."""
        return self.api.scope

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """Memory within its bounds, labels that fit into a name."""
        return values.fitted(spec)

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """Refs are pulled by islo itself; the kind of what is booted is told from its name later."""
        ref = f"{_SNAPSHOT}{image.name}" if image.kind == "snapshot" else image.name
        return Prepared(ref, image=image.config, digest=image.digest)

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Ask for it and wait until it runs. The name is unique, so a second create finds the first one's."""
        allowed = spec.network.hosts if spec.network.mode == "allowlist" else ()
        name = values.name_of(key, {**spec.labels, "oe-key": key}, profile=bool(allowed))
        ref = values.ref_of(self.scope(), name)
        beside = False
        try:
            if allowed:
                profile = await gateway.profile(self.api, name)
                beside = True
                await gateway.allow(self.api, profile, allowed)
            await self._ask(prepared, spec, name)
        except OpenEnvError as error:
            if beside and error.outcome == "failed":
                await backend_kit.undo(self.delete(ref), error)
            raise  # what may exist is found by its key, its profile too
        try:
            return await asyncio.wait_for(self._started(prepared, ref), spec.timeouts.create)
        except asyncio.TimeoutError:
            late: OpenEnvError = CreateTimeout(f"{name} did not start within {spec.timeouts.create:g} s", ref=ref)
        except OpenEnvError as error:
            late = error
        await backend_kit.undo(self.delete(ref), late)
        raise late

    async def _ask(self, prepared: Prepared, spec: SandboxSpec, name: str) -> None:
        asked = request(prepared, spec, name)
        what = "creating the sandbox"
        try:
            await self.api.call(what, lambda client: client.sandboxes.create_sandbox(**asked, request_options=ONCE))
        except ProviderError as error:
            if refused(error, 400, 404, 422) and "image" in error.message.lower():
                raise ImageError(error.message, provider=NAME) from error
            if not refused(error, 409) or not await self._boxes(name):
                raise

    async def _started(self, prepared: Prepared, ref: SandboxRef) -> Sandbox:
        from openenv_providers._islo_sandbox import IsloSandbox

        box = await self.api.poll(
            "creating the sandbox",
            lambda client: client.sandboxes.get_sandbox(ref.id, request_options=ONCE),
            lambda box: values.status_of(box) != "creating",
            ref=ref,
        )
        if values.status_of(box) in ("running", "paused"):
            return IsloSandbox(self.api, box)
        phase = box.creation_phase or "an unknown phase"
        text = f"creating the sandbox: it ended as {box.status} in {phase}"
        if "image" in phase or "pull" in phase:
            raise ImageError(f"{text}; is there an image {prepared.ref}, and may islo pull it?", ref=ref)
        raise ProviderError(text, ref=ref, retryable=True)

    async def _boxes(self, prefix: str) -> list[Any]:
        """Sandboxes whose names begin so, over all pages."""
        rows: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self.api.call("listing sandboxes", partial(_page, prefix=prefix, cursor=cursor))
            rows += [row for row in page.items if row.name.startswith(prefix) and values.status_of(row) is not None]
            cursor = page.next_cursor
            if not cursor:
                return rows

    async def _infos(self, prefix: str) -> list[SandboxInfo]:
        """Sandboxes, and profiles that have none any more."""
        infos = [values.info_of(self.scope(), row) for row in await self._boxes(prefix)]
        known = {info.ref.id for info in infos}
        profiles = [row.name for row in await gateway.named(self.api, prefix) if row.name not in known]
        return infos + [values.orphan(self.scope(), name) for name in profiles if values.has_profile(name)]

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """By the beginning of the name. A profile whose create never came is found too."""
        return [info.ref for info in await self._infos(f"{key}-") if info.ref.key == key]

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by name."""
        from openenv_providers._islo_sandbox import IsloSandbox

        box = await self.api.call(
            "looking at the sandbox",
            lambda client: client.sandboxes.get_sandbox(ref.id, request_options=ONCE),
            ref=ref,
        )
        if values.status_of(box) is None:
            raise SandboxGone("the sandbox is gone", ref=ref)
        return IsloSandbox(self.api, box)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Whatever has our kind of name, compared here."""
        for info in await self._infos("oe-"):
            if info.ref.key and labels.items() <= info.labels.items():
                yield info

    async def delete(self, ref: SandboxRef) -> None:
        """Remove it, and the profile of its name."""
        from openenv_providers._islo_sandbox import erase

        await erase(self.api, ref)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Snapshots that were taken here."""
        rows: list[Any] = []
        while True:
            page = await self.api.call("listing snapshots", partial(_snapshots, offset=len(rows)))
            rows += page.items
            if not page.items or len(rows) >= page.total:
                break
        return [
            Prepared(
                f"{_SNAPSHOT}{row.name}", owned=True, labels=labels, created_at=backend_kit.unix_time(row.created_at)
            )
            for row in rows
            if (labels := values.snapshot_labels(row.name)) is not None
        ]

    async def drop(self, prepared: Prepared) -> None:
        """Remove a snapshot."""
        name = prepared.ref.removeprefix(_SNAPSHOT)
        try:
            await self.api.call(
                "removing a snapshot", lambda client: client.snapshots.delete_snapshot(name, request_options=ONCE)
            )
        except ProviderError as error:
            if not refused(error, 404):
                raise

    async def aclose(self) -> None:
        """Close the client of this loop."""
        await self.api.aclose()


async def _page(client: Any, prefix: str, cursor: str | None) -> Any:
    more = {"cursor": cursor} if cursor else {}
    return await client.sandboxes.list_sandboxes(name_prefix=prefix, limit=_PAGE, **more, request_options=ONCE)


async def _snapshots(client: Any, offset: int) -> Any:
    return await client.snapshots.list_snapshots(limit=_PAGE, offset=offset, request_options=ONCE)


def request(prepared: Prepared, spec: SandboxSpec, name: str) -> dict[str, Any]:
    """The body of a create."""
    from islo import LifecyclePolicy

    sizes, snapshot = spec.resources, prepared.ref.startswith(_SNAPSHOT)
    # Whole minutes: what the service makes of others is not documented.
    lifetime = 60 * math.ceil(spec.timeouts.effective_lifetime / 60)
    asked: dict[str, Any] = {
        "name": name,
        "snapshot_name" if snapshot else "image": prepared.ref.removeprefix(_SNAPSHOT),
        "env": dict(spec.env),
        "lifecycle": LifecyclePolicy(delete_after=lifetime),
        "internet_enabled": spec.network.mode != "none",
    }
    given = {
        "gateway_profile": name if values.has_profile(name) else None,
        "vcpus": None if sizes.cpus is None else math.ceil(sizes.cpus),
        "memory_mb": sizes.memory_mb,
        "disk_gb": None if sizes.disk_mb is None else math.ceil(sizes.disk_mb / 1024),
    }
    return asked | {field: value for field, value in given.items() if value is not None}
