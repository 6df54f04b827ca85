"""Azure Container Apps Sandboxes: microVMs in a sandbox group of yours. A preview; see `_aca_preview` for what that is.

The image's own command never runs by itself: the sandbox boots idle and core starts the server by a command, because
what the service does with ENV, USER and WORKDIR is not documented, it tells neither the end nor the output of a main
process, and the variables given at create can be read back by whoever may look at the sandbox. Secrets go by a file.

Its lifetime is two timers: unused for ``idle_s`` it is suspended, and so long after that as it was to live it is
deleted. The second can only be set on an existing sandbox: one whose owner died in between is only suspended, and the
next openenv process, or ``openenv gc``, finds it by its labels.
"""

from __future__ import annotations

import asyncio
import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers import _aca_disks as disks
from openenv_providers import _aca_preview as preview
from openenv_providers._aca_errors import NAME, ours
from openenv_providers._aca_options import AcaOptions, can_log_in
from openenv_providers._aca_sandbox import AcaSandbox, info
from openenv_providers._aca_values import Wish
from openenv_sandbox.backend_kit import undo
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
from openenv_sandbox.errors import CapabilityError, ImageError, OpenEnvError
from openenv_sandbox.provider import (
    Check,
    Image,
    LogSink,
    Prepared,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxRef,
    Verified,
    install_hint,
)
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.spec import SandboxSpec

MB_PER_CORE, CORES = 2048, 16.0
_IDLE = ("/bin/sh", "-c", "while :; do sleep 86400; done")


class AcaProvider(SandboxProvider):
    """Sandboxes of one sandbox group."""

    name = NAME
    title = "Azure Container Apps"
    extra = "aca"
    sdk = ("azure.containerapps.sandbox", "azure.identity")
    Options = AcaOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref", "template", "snapshot"}),
        private_images=True,
        start="exec",
        exec=ExecCapabilities(binary=False, stdin=False, stream=False, env=False, user=False, max_s=200.0),
        put=True,
        ports="any",
        exposure=frozenset({"public"}),
        network=frozenset({"full", "none", "hosts", "wildcard"}),
        isolation="vm",
        user=False,
        lifetime="idle-only",
        create_settle_s=60.0,
        labels="filter",
        findable="label",
        pause=True,
        snapshot=True,
        logs=False,
    )
    verified = Verified(
        "emulator", sdk="azure-containerapps-sandbox 0.1.0b4", date="2026-11-30", note="over TLS; a preview"
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._api: preview.Preview | None = None
        self._tls: ssl.SSLContext | None = None
        self.sources: Sequence[str] = self.options.allow_from
        host, _, port = (self.options.gateway or "").partition(":")
        self.gateway = (host, int(port)) if host else None

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """SDK, the group's name and a way to log in, in this order; nothing is imported or asked."""
        try:
            if find_spec("azure") is None or find_spec("azure.containerapps") is None:
                return Check(False, "not installed", install_hint(cls))
            chosen = cls.parse_options(options)
            missing = [name for name, value in chosen.where().items() if not value]
            if missing:
                hint = f"export OPENENV_PROVIDERS__ACA__{missing[0].upper()}=…"
                return Check(False, f"{', '.join(missing)} not set", hint)
            return can_log_in(chosen.credential)
        except OpenEnvError as error:
            return Check(False, error.message, error.hint or "")
        except Exception as error:
            return Check(False, f"cannot tell: {type(error).__name__}", install_hint(cls))

    def scope(self) -> str:
        """Data plane, subscription, resource group and sandbox group."""
        endpoint, *path = (value or "-" for value in self.options.where().values())
        return f"{endpoint} {'/'.join(path)}"

    @property
    def api(self) -> preview.Preview:
        """The service; made by the first call.

        Raises:
            ProviderUnavailable: The options do not name a sandbox group.
        """
        if self._api is None:
            self._api = preview.Preview(self.options.login())
        return self._api

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """At most 16 cores and 2 GiB for each; the missing one of the two follows the other.

        Raises:
            CapabilityError: More than that.
        """
        size = spec.resources
        if size.cpus is None and size.memory_mb is None:
            return spec
        cpus = size.cpus or 0.0
        memory = size.memory_mb or min(MB_PER_CORE, int(cpus * MB_PER_CORE))
        cpus = max(cpus, math.ceil(memory * 1000 / MB_PER_CORE) / 1000)
        if cpus > CORES:
            field = "cpus" if (size.cpus or 0.0) > CORES else "memory_mb"
            text = f"resources.{field}: {getattr(size, field):g} is more than it sells: 16 cores with 2048 MiB each"
            raise CapabilityError(text, field=f"resources.{field}", provider=NAME)
        return spec.model_copy(update={"resources": size.model_copy(update={"cpus": cpus, "memory_mb": memory})})

    # ------------------------------------------------------------------------------------------------- images

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """A disk image of a ref, made once for its content; templates and snapshots are looked up."""
        if image.kind == "ref":
            return await disks.from_ref(self.api, image, spec, self.options, on_log)
        return await disks.given(self.api, image)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Disk images of refs, and snapshots."""
        return await disks.kept(self.api)

    async def drop(self, prepared: Prepared) -> None:
        """Remove the disk image."""
        await disks.drop(self.api, prepared.ref)

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Create, wait until it runs, and give it its end; what fails after the request is removed by its key."""
        what = f"creating a sandbox from {prepared.ref}"
        running = await ours(self.api.begin(self._wish(prepared, spec, key)), what, gone=ImageError, acts=True)
        made: SandboxRef | None = None
        try:
            id = await ours(running(), what, acts=True)
            made = SandboxRef(NAME, self.scope(), id, key)
            life = math.ceil(spec.timeouts.effective_lifetime)
            await ours(self.api.set_life(id, self.options.idle_s, life), "setting its lifetime", ref=made, acts=True)
            return await self.attach(made)
        except OpenEnvError as error:
            if made is not None:
                await undo(self.delete(made), error)
            else:
                await self._undo(key, error)
            raise

    def _wish(self, prepared: Prepared, spec: SandboxSpec, key: str) -> Wish:
        size, public = spec.resources, prepared.ref.startswith(disks.PUBLIC)
        cpu, memory, disk_size = preview.sizes(size.cpus, size.memory_mb, size.disk_mb)
        return Wish(
            disk_id=None if public else prepared.ref,
            public_disk=prepared.ref.removeprefix(disks.PUBLIC) if public else None,
            cpu=cpu,
            memory=memory,
            disk_size=disk_size,
            suspend_s=self.options.idle_s,
            labels={**spec.labels, KEY: key},
            env=spec.env,
            deny=spec.network.mode != "full",
            hosts=spec.network.hosts,
            denied=[preview.METADATA] if self.options.block_metadata and spec.network.mode == "full" else [],
            ports=[port.number for port in spec.all_ports if port.visibility == "public"],
            sources=self.sources,
            argv=_IDLE,
            timeout_s=spec.timeouts.create,
        )

    async def _undo(self, key: str, error: OpenEnvError) -> None:
        """Remove what there is. The request was accepted: not to find it yet does not mean that nothing is there."""
        found: list[SandboxRef] = []

        async def remove() -> None:
            found.extend(await self.find(key))
            for ref in found:
                await self.delete(ref)

        await undo(remove(), error)
        if not found:
            error.outcome = "unknown"

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by id."""
        box = await ours(self.api.get(ref.id), "looking at the sandbox", ref=ref)
        return AcaSandbox(self, info(self.scope(), box))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """All pages; the service filters, and what it let through is compared again."""
        for box in await ours(self.api.sandboxes(labels), "listing sandboxes"):
            if labels.items() <= box.labels.items():
                yield info(self.scope(), box)

    async def delete(self, ref: SandboxRef) -> None:
        """Accepted by the service, which then takes its time."""
        try:
            await ours(self.api.delete(ref.id), "deleting the sandbox", gone=ImageError, acts=True)
        except ImageError:
            return

    async def tls(self) -> ssl.SSLContext | None:
        """For ports behind an authority of one's own."""
        if self._tls is None and self.options.ca_file is not None:
            import ssl

            self._tls = await asyncio.to_thread(ssl.create_default_context, cafile=self.options.ca_file)
        return self._tls

    async def aclose(self) -> None:
        """Close the connections."""
        if self._api is not None:
            await self._api.aclose()
