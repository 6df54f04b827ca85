"""Devboxes of Runloop (https://runloop.ai), by the generated client of ``runloop-api-client`` (3.0).

No registry image boots as it is: refs and folders are built into a blueprint by the vendor, once for each content. The
devbox boots idle and core starts the server in it. Commands answer in text and take text on stdin, so core hands input
over as files and has output encoded. No listing knows labels: they are in the devbox's metadata, and the devboxes that
live are compared here. One that was shut down stays in the vendor's lists for good; those are asked by status.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from openenv_providers import _runloop_convert as convert
from openenv_providers._runloop_api import SDK, Api
from openenv_providers._runloop_devboxes import Devboxes
from openenv_sandbox.backend_kit import digest
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes, Span
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import Prepared, Sandbox, SandboxInfo, SandboxProvider, SandboxRef, Verified
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.provider import Image, ImageConfig, LogSink
    from openenv_sandbox.spec import SandboxSpec

BASE_URL = "https://api.runloop.ai"


class RunloopOptions(ProviderOptions):
    """Options of runloop.

    Attributes:
        base_url: Where the API is, instead of RUNLOOP_BASE_URL; tunnels are below the same domain.
        gateway: Where tunnels are dialled instead of their public address, e.g. ``http://127.0.0.1:8080``.
        architecture: Of blueprints and devboxes.
        keep_openenv: Folders are built as their author wrote them, without installing the running openenv.
    """

    base_url: str | None = trusted()
    gateway: str | None = trusted(pattern=r"^https?://[^/:@\s]+:[0-9]+$")
    architecture: Literal["x86_64", "arm64"] = "x86_64"
    keep_openenv: bool = False


class RunloopProvider(SandboxProvider):
    """Devboxes of one Runloop account."""

    name = "runloop"
    title = "Runloop"
    extra = "runloop"
    sdk = SDK
    env_vars = ("RUNLOOP_API_KEY",)
    Options = RunloopOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref", "folder", "template", "snapshot"}),
        start="exec",
        runs_image=False,
        exec=ExecCapabilities(binary=False, stdin=False, stream=False, env=False, cwd=False, user=False),
        put=True,
        ports="any",
        exposure=frozenset({"private", "public"}),
        network=frozenset({"full", "none", "hosts", "wildcard", "cidr4"}),
        sizes=Sizes(
            cpus=convert.CPUS,
            memory_mb=tuple(1024 * gb for gb in convert.MEMORY_GB),
            disk_mb=Span(2048, 65_536, 2048),
        ),
        user=False,
        lifetime="server-fixed",
        max_lifetime_s=172_800.0,
        labels="client-side",
        findable="label",
        lists_ended=False,
        snapshot=True,
        logs=False,
    )
    verified = Verified(
        "emulator", sdk="runloop-api-client 3.0.0", date="2026-11-30", note="nothing was sent to the vendor"
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        url = self.options.base_url or os.environ.get("RUNLOOP_BASE_URL") or BASE_URL
        key = os.environ.get("RUNLOOP_API_KEY", "")
        self.api = Api(url.rstrip("/"), f"{url.rstrip('/')} {digest(key)}", key)
        self.devboxes = Devboxes(self.api)
        self.domain = (urlsplit(url).hostname or "").removeprefix("api.")

    def scope(self) -> str:
        """The API and a fingerprint of the key, which belongs to one account."""
        return self.api.scope

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """Cores and memory are sold together."""
        return convert.fitted(spec)

    # ------------------------------------------------------------------------------------------------- images

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """Of one architecture."""
        kept = ":kept" if image.kind == "folder" and self.options.keep_openenv else ""
        return f"{super().prepare_key(spec, image)}:{self.options.architecture}{kept}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """Have a blueprint made, unless there is one."""
        from openenv_providers._runloop_blueprints import Blueprints

        blueprints = Blueprints(self.api, self.options.architecture, self.options.keep_openenv)
        return await blueprints.prepare(spec, image, on_log)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Blueprints and snapshots that openenv made."""
        from openenv_providers import _runloop_blueprints

        return await _runloop_blueprints.ours(self.api)

    async def drop(self, prepared: Prepared) -> None:
        """Remove one of those."""
        from openenv_providers import _runloop_blueprints

        await _runloop_blueprints.drop(self.api, prepared.ref)

    # ---------------------------------------------------------------------------------------------- devboxes

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Create and wait until it runs."""
        view = await self.devboxes.create(prepared, spec, key, self.options.architecture)
        return self._sandbox(view, prepared.image)

    def _sandbox(self, view: Any, config: ImageConfig | None = None) -> Sandbox:
        from openenv_providers._runloop_sandbox import RunloopSandbox

        return RunloopSandbox(self.devboxes, view, self.domain, self.options.gateway, config)

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """By the label, among all that live; where there is none, the network policy of one that never was."""
        policies = await self.devboxes.orphans({KEY: key}, key)
        found = [self.devboxes.ref(view) for view in await self.devboxes.living({KEY: key})]
        return found or [info.ref for info in policies.values()]

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by id, once it has booted."""
        return self._sandbox(await self.devboxes.taken(ref))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """All pages of every status of a devbox that lives, and network policies without one."""
        policies = await self.devboxes.orphans(labels)  # first: one that is made later has a devbox to come
        for view in await self.devboxes.living(labels):
            policies.pop(view.launch_parameters.network_policy_id, None)
            yield convert.info(self.scope(), view)
        for orphan in policies.values():
            yield orphan

    async def delete(self, ref: SandboxRef) -> None:
        """Shut down, with its network policy."""
        await self.devboxes.delete(ref)

    async def aclose(self) -> None:
        """Close the client of this loop."""
        await self.api.aclose()
