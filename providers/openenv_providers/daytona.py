"""Sandboxes of Daytona (https://daytona.io), by the generated API clients of the ``daytona`` SDK (0.226.1).

What it boots is a snapshot: folders and refs are made into one by Daytona's own builder, under a name that says their
content and sizes. The sandbox boots idle and core starts the server in it, because whether an image's own command
runs is not documented; the snapshots made here run ``sleep``. Variables given at create can be read by every member of
the organisation; secrets go to the server's command alone.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers import _daytona_convert as convert
from openenv_providers._daytona_api import SDK, Api
from openenv_sandbox import backend_kit
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes, Span
from openenv_sandbox.errors import (
    CapabilityError,
    CreateTimeout,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    SandboxGone,
)
from openenv_sandbox.options import ProviderOptions, trusted
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
    default_check,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._daytona_api import Clients
    from openenv_providers._daytona_sandbox import DaytonaSandbox
    from openenv_sandbox.spec import SandboxSpec

API_URL = "https://app.daytona.io/api"
_PAGE = 100


class DaytonaOptions(ProviderOptions):
    """Options of daytona.

    Attributes:
        api_url: Where the API is, instead of DAYTONA_API_URL; the data plane is where the API says.
        target: Region, instead of DAYTONA_TARGET; None for the organisation's default.
        keep_openenv: Folders are built as their author wrote them, without installing the running openenv.
        timeout_s: For one request, in seconds.
    """

    api_url: str | None = trusted()
    target: str | None = None
    keep_openenv: bool = False
    timeout_s: float = 60.0


class DaytonaProvider(SandboxProvider):
    """Sandboxes of one Daytona organisation."""

    name = "daytona"
    title = "Daytona"
    extra = "daytona"
    sdk = SDK
    env_vars = ("DAYTONA_API_KEY",)
    Options = DaytonaOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref", "folder", "template", "snapshot"}),
        start="exec",
        runs_image=False,
        exec=ExecCapabilities(user=False),
        ports="any",
        exposure=frozenset({"private"}),
        network=frozenset({"full", "none", "hosts", "cidr4"}),
        isolation="container",
        gpus=convert.GPUS,
        sizes=Sizes(cpus=Span(1, step=1), memory_mb=Span(1024, step=1024), disk_mb=Span(1024, step=1024)),
        user=False,
        lifetime="server-extendable",
        dedupes_key=True,
        create_settle_s=60.0,
        attach=True,
        labels="filter",
        findable="name",
        pause=True,
        snapshot=True,
        logs=False,
    )
    verified = Verified("emulator", sdk="daytona 0.226.1", date="2026-11-30", note="nothing was sent to the vendor")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        env = os.environ.get
        url = self.options.api_url or env("DAYTONA_API_URL") or API_URL
        self._target = self.options.target or env("DAYTONA_TARGET") or None
        self._key, self._org = env("DAYTONA_API_KEY") or "", env("DAYTONA_ORGANIZATION_ID") or ""
        token = self._key or env("DAYTONA_JWT_TOKEN") or ""
        headers = {"Authorization": f"Bearer {token}"}
        if self._org and not self._key:
            headers["X-Daytona-Organization-ID"] = self._org
        self._token = token
        self.api = Api(url, headers, self.options.timeout_s)

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """SDK and credentials: an API key, or a JWT with the organisation that it is for."""
        jwt = os.environ.get("DAYTONA_JWT_TOKEN") and os.environ.get("DAYTONA_ORGANIZATION_ID")
        found = default_check(cls)
        if found.ready or not jwt or "not set" not in found.reason:
            return found
        return Check(True)

    def scope(self) -> str:
        """API and organisation; where that is not said, a fingerprint of the key, which belongs to one."""
        return f"{self.api.url} {self._org or backend_kit.digest(self._token)}"

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """Sizes of a snapshot are its own."""
        convert.check_network(spec)
        if image.kind in ("template", "snapshot") and spec.resources.model_dump(exclude_none=True):
            raise CapabilityError(
                "a daytona snapshot has the sizes that it was made with",
                field="resources",
                provider=self.name,
                hint="leave resources out, or launch the folder or ref",
            )
        return spec

    # ------------------------------------------------------------------------------------------------- images

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """Sizes are part of a snapshot."""
        sizes = json.dumps(convert.sizes(spec), sort_keys=True)
        kept = ":kept" if image.kind == "folder" and self.options.keep_openenv else ""
        return f"{super().prepare_key(spec, image)}:{self._target}:{sizes}{kept}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """Make the snapshot, unless it is there."""
        from openenv_providers import _daytona_images

        self._need_credentials()
        keep = self.options.keep_openenv
        return await _daytona_images.ensure(self.api, spec, image, on_log, target=self._target, keep_openenv=keep)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Snapshots built from folders and refs, and those taken of sandboxes."""
        from openenv_providers import _daytona_images

        return await _daytona_images.ours(self.api)

    async def drop(self, prepared: Prepared) -> None:
        """Remove the snapshot; one in use is refused by the vendor."""
        from openenv_providers import _daytona_images

        await _daytona_images.remove(self.api, prepared.ref)

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Create and wait until it runs. A name that is taken by the same key is the sandbox of a lost reply."""
        self._need_credentials()
        what = f"creating a sandbox from {prepared.ref}"
        patience = spec.timeouts.create
        end = asyncio.get_running_loop().time() + patience
        request = convert.body(prepared, spec, key, self._target)
        try:
            made = await self.api.call(
                what, lambda clients: clients.sandboxes.create_sandbox(request), started=True, timeout=patience
            )
        except OpenEnvError as error:
            if "snapshot" in error.message.lower() and "not found" in error.message.lower():
                raise ImageError(error.message, provider=self.name, hint="daytona snapshot list") from error
            if getattr(error.__cause__, "status", None) != 409 or (there := await self._named(key)) is None:
                raise
            made = there
        ref = SandboxRef(self.name, self.scope(), made.id, key)

        def started(found: Any) -> bool:
            status = convert.info(self.scope(), found).status
            if status in ("failed", "stopped"):
                text = f"{what}: it ended as {found.state.value}: {found.error_reason or 'no reason given'}"
                raise ProviderError(text, ref=ref, retryable=True)
            return status == "running"

        look = partial(self.api.call, what, lambda clients: clients.sandboxes.get_sandbox(ref.id), ref=ref)
        try:
            if not started(made):
                left = max(0.0, end - asyncio.get_running_loop().time())
                made = await backend_kit.poll(look, started, deadline=left)
        except TimeoutError:
            late = CreateTimeout(f"{what}: it did not start within {patience:g} s", ref=ref)
            await backend_kit.undo(self.delete(ref), late)
            raise late from None
        except OpenEnvError as failure:
            await backend_kit.undo(self.delete(ref), failure)
            raise
        return self._sandbox(made, prepared)

    def _sandbox(self, found: Any, prepared: Prepared | None = None) -> DaytonaSandbox:
        from openenv_providers._daytona_sandbox import DaytonaSandbox

        info = convert.info(self.scope(), found)
        return DaytonaSandbox(self.api, info, found.toolbox_proxy_url, prepared.image if prepared else None)

    async def _named(self, key: str) -> Any:
        """The sandbox of that name if it is ours and still exists, else None."""
        try:
            found = await self.api.call(f"looking for {key}", lambda clients: clients.sandboxes.get_sandbox(key))
        except SandboxGone:
            return None
        gone = convert.state(found) in convert.ENDED
        return None if gone or convert.info(self.scope(), found).ref.key != key else found

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """By its name, which is the key and unique; listings may lag behind."""
        found = await self._named(key)
        return [] if found is None else [convert.info(self.scope(), found).ref]

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by id."""
        found = await self.api.call(
            "looking at the sandbox", lambda clients: clients.sandboxes.get_sandbox(ref.id), ref=ref
        )
        if convert.state(found) in convert.ENDED:
            raise SandboxGone("the sandbox is gone", ref=ref)
        sandbox = self._sandbox(found)
        sandbox.info = replace(sandbox.info, ref=replace(sandbox.info.ref, key=sandbox.info.ref.key or ref.key))
        return sandbox

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Page by page; the vendor filters and every row is compared again."""
        cursor: str | None = None
        wanted = json.dumps(dict(labels)) if labels else None
        while True:
            ask = partial(_page, labels=wanted, cursor=cursor)
            page = await self.api.call("listing sandboxes", ask)
            for row in page.items:
                gone = convert.state(row) in convert.ENDED
                if not gone and all(row.labels.get(name) == value for name, value in labels.items()):
                    yield convert.info(self.scope(), row)
            cursor = page.next_cursor
            if not cursor:
                return

    async def delete(self, ref: SandboxRef) -> None:
        """Delete, and wait until it is gone."""
        await convert.delete(self.api, ref)

    async def aclose(self) -> None:
        """Close the clients of this loop."""
        await self.api.aclose()

    def _need_credentials(self) -> None:
        found = self.check(self.options)
        if not found.ready:
            raise ProviderUnavailable(f"daytona: {found.reason}", provider=self.name, hint=found.hint)


async def _page(clients: Clients, labels: str | None, cursor: str | None) -> Any:
    return await clients.sandboxes.list_sandboxes(labels=labels, cursor=cursor, limit=_PAGE)
