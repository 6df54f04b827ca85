"""What the backends e2b and novita have in common: one provider, told apart by its SDK.

The SDKs read ``*_API_KEY``, ``*_DOMAIN``, ``*_API_URL``, ``*_SANDBOX_URL``, ``*_DEBUG`` (refused: it makes nothing and
points at this machine) and some connection limits from the environment, and no file; they send no telemetry.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers._e2b_sdk import Sdk, known
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes, Span
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.errors import CapabilityError, OpenEnvError
from openenv_sandbox.provider import (
    Check,
    Image,
    LogSink,
    Prepared,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxRef,
    default_check,
)
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.provider import Status
    from openenv_sandbox.spec import SandboxSpec

EVERYTHING = "0.0.0.0/0"
CAPABILITIES = Capabilities(
    images=frozenset({"ref", "folder", "template", "snapshot"}),
    private_images=True,
    start="exec",
    runs_image=False,
    exec=ExecCapabilities(stdin_stream=True, user=False),
    ports="any",
    exposure=frozenset({"private", "public"}),
    network=frozenset({"full", "none", "hosts", "cidr4"}),
    isolation="vm",
    sizes=Sizes(cpus=Span(1, step=1), memory_mb=Span(128, step=2), limits=frozenset({"cpus", "memory_mb"})),
    user=False,
    lifetime="server-extendable",
    max_lifetime_s=86_400.0,
    create_settle_s=60.0,
    attach=True,
    labels="filter",
    findable="label",
    lists_ended=False,
    pause=True,
    snapshot=True,
    logs=False,
)


class CloudProvider(SandboxProvider):
    """Sandboxes of one account. A subclass names the SDK."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES
    sdk_class: ClassVar[type[Sdk]]
    traffic_header: ClassVar[str]

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.cloud = self.sdk_class(self.options, self.name)
        self.tame()

    @abstractmethod
    def tame(self) -> None:
        """Quiet what the SDK would say by itself."""

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """SDK, API key, and no debug mode."""
        found = default_check(cls)
        try:
            cls.sdk_class.refuse_debug(cls.sdk_class.prefix)
            cls.parse_options(options)
        except OpenEnvError as error:
            return Check(False, error.message, error.hint or "see the backend's page")
        return found

    def effective_capabilities(self) -> Capabilities:
        """The longest lifetime is the plan's, and who builds folders is the user's choice."""
        images = self.capabilities.images - (frozenset() if self.options.build_folders else {"folder"})
        return replace(self.capabilities, images=images, max_lifetime_s=self.options.max_lifetime_s)

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """Sizes belong to a template, so what exists already takes none."""
        wanted = spec.resources
        if image.kind in ("template", "snapshot"):
            for name in ("cpus", "memory_mb"):
                if getattr(wanted, name) is not None:
                    raise CapabilityError(
                        f"{self.name} cannot honour resources.{name}: a {image.kind} has its sizes built in",
                        field=f"resources.{name}",
                        provider=self.name,
                        hint="leave it out, or give the image as a registry ref or a folder",
                    )
        return spec

    def scope(self) -> str:
        """Control plane and API key (a short hash of it)."""
        return self.cloud.scope

    # ------------------------------------------------------------------------------------------------- images

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """Sizes are part of a template, and so is the install that may remove it."""
        if image.kind in ("template", "snapshot"):
            return super().prepare_key(spec, image)
        sizes = f"{spec.resources.cpus or ''}:{spec.resources.memory_mb or ''}"
        kept = ":kept" if image.kind == "folder" and self.options.keep_openenv else ""
        return f"{super().prepare_key(spec, image)}:{sizes}:{spec.labels.get('oe-install', '')}{kept}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """A template as it is; a ref or folder is built into one by the service."""
        from openenv_providers._e2b_templates import Templates

        if image.kind in ("template", "snapshot"):
            return Prepared(ref=image.name, image=image.config)
        return await Templates(self).ensure(spec, image, self.prepare_key(spec, image), on_log)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Templates and snapshots that an openenv made, with the install that did."""
        from openenv_providers._e2b_templates import Templates

        return await Templates(self).ours()

    async def drop(self, prepared: Prepared) -> None:
        """Remove the template or snapshot."""
        from openenv_providers._e2b_templates import Templates

        await Templates(self).remove(prepared.ref)

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """One request. The key is metadata, and the idempotency header where the SDK has one (not relied upon)."""
        seconds = math.ceil(spec.timeouts.effective_lifetime)
        network, internet = self._network(spec)
        body = {
            "template_id": prepared.ref,
            "timeout": seconds,
            "auto_pause": False,
            "metadata": {**spec.labels, KEY: key},
            "env_vars": {**spec.env, **spec.plain_secrets()},
            "network": network,
            "allow_internet_access": internet,
        }
        made = await self.cloud.create(body, key=key, what=f"creating a sandbox from {prepared.ref}")
        tokens = {"envd": known(made.envd_access_token), "traffic": known(made.traffic_access_token)}
        state = {name: token for name, token in tokens.items() if token}
        now = CLOCK.get().time()
        info = SandboxInfo(
            ref=SandboxRef(self.name, self.scope(), made.sandbox_id, key, state),
            status="running",
            labels={**spec.labels, KEY: key},
            created_at=now,
            expires_at=now + seconds,
            resources=_granted(spec.resources),
            isolation=self.capabilities.isolation,
            image=prepared.ref,
        )
        return self._sandbox(info, known(made.domain), made.envd_version, float(seconds), public=spec_is_public(spec))

    def _network(self, spec: SandboxSpec) -> tuple[dict[str, Any], bool]:
        public = spec_is_public(spec)
        policy = spec.network
        if policy.mode == "allowlist":
            allowed = [*policy.cidrs, *policy.hosts]
            return {"allow_public_traffic": public, "allow_out": allowed, "deny_out": [EVERYTHING]}, True
        return {"allow_public_traffic": public}, policy.mode == "full"

    def _sandbox(self, info: SandboxInfo, domain: str | None, version: str, lease: float, *, public: bool) -> Sandbox:
        from openenv_providers._e2b_sandbox import CloudSandbox

        return CloudSandbox(self, info, domain or self.cloud.domain, version, lease, public=public)

    async def detail(self, ref: SandboxRef, what: str = "looking at the sandbox") -> Any:
        """What the service says about one sandbox.

        Raises:
            SandboxGone: It does not exist.
        """
        reply = await self.cloud.rest("sandboxes", "get_sandboxes_sandbox_id", ref.id, what=what, ref=ref)
        return reply.parsed

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by id; a paused sandbox stays paused."""
        found = await self.detail(ref)
        state = dict(ref.state)
        if "envd" not in state and known(found.envd_access_token):
            state["envd"] = found.envd_access_token
        info = self._info(found)
        info = replace(info, ref=replace(info.ref, state=state))
        network = known(found.network)
        public = network is None or known(network.allow_public_traffic) is not False
        lease = max(60.0, (info.expires_at or 0.0) - (info.created_at or 0.0))
        return self._sandbox(info, known(found.domain), found.envd_version, lease, public=public)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Page by page, running and paused; the service filters, and the match is checked here again."""
        async for found in self.pages("sandboxes", "get_v2_sandboxes", "listing sandboxes", metadata=_query(labels)):
            info = self._info(found)
            if info.labels.items() >= labels.items():
                yield info

    async def pages(self, group: str, call: str, what: str, **kw: Any) -> AsyncIterator[Any]:
        """Every item of a paged listing; a page that fails raises."""
        arguments = {name: value for name, value in kw.items() if value}
        while True:
            reply = await self.cloud.rest(group, call, what=what, **arguments)
            for item in reply.parsed or ():
                yield item
            token = reply.headers.get("x-next-token")
            if not token:
                return
            arguments["next_token"] = token

    async def delete(self, ref: SandboxRef) -> None:
        """Kill it; what does not exist is deleted already."""
        call = "delete_sandboxes_sandbox_id"
        await self.cloud.rest("sandboxes", call, ref.id, what="deleting the sandbox", ref=ref, accept=(404,))

    async def aclose(self) -> None:
        """Close the client."""
        await self.cloud.aclose()

    def _info(self, found: Any) -> SandboxInfo:
        metadata = known(found.metadata)
        labels = {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}
        states: dict[str, Status] = {"running": "running", "paused": "paused"}
        return SandboxInfo(
            ref=SandboxRef(self.name, self.scope(), found.sandbox_id, labels.get(KEY)),
            status=states.get(str(found.state.value), "unknown"),
            labels=labels,
            created_at=found.started_at.timestamp(),
            expires_at=found.end_at.timestamp(),
            resources=Resources(cpus=float(found.cpu_count), memory_mb=found.memory_mb),
            isolation=self.capabilities.isolation,
            image=known(found.alias) or found.template_id,
        )


def spec_is_public(spec: SandboxSpec) -> bool:
    """One switch opens every port of a sandbox: only where all may be public it is used."""
    return all(port.visibility == "public" for port in spec.all_ports)


def _granted(wanted: Resources) -> Resources | None:
    return wanted if wanted.cpus is not None or wanted.memory_mb is not None else None


def _query(labels: Mapping[str, str]) -> str:
    from urllib.parse import quote, urlencode

    return urlencode({quote(name): quote(value) for name, value in labels.items()})
