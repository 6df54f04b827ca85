"""Sandboxes of modal.

What modal does that the contract has to know:

* Arguments at create replace an image's CMD and are appended to its ENTRYPOINT. A command therefore boots an image
  whose ENTRYPOINT was cleared in a layer of its own, unless it is known to have none. Without a command, the CMD that
  core found is passed on: older image builder versions of a workspace (2024.10 and before) would sleep instead of
  running it.
* The key is the sandbox's name, unique among the running ones of an app, and a tag. The SDK repeats a create whose
  reply was lost; the name makes the second one fail, and what the first one made is taken over.
* A port is private by a connect token, which needs no declaration. Tunnels are addresses that anyone may use: a port
  gets one only when it is public, at create. TCP that is not HTTP has no private way and is refused unless public.
* No network is an empty list of allowed CIDRs: modal's ``block_network`` would close the way in as well.
* A sandbox with a GPU is of modal's older family: its variables and secrets become a Secret of the app, one request
  per sandbox; those of all others travel inside the create request and are stored nowhere.
* Only sandboxes that have not ended are listed.

UNVERIFIED, because the service could not be reached: whether USER of an image is honoured (core sees to it), how long
a connect token lives (a JWT's ``exp`` is used when there is one), whether a snapshot keeps CMD and ENV.
What importing the SDK does is said in `_modal_account`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from openenv_providers import _modal_account as login
from openenv_providers import _modal_convert as convert
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes
from openenv_sandbox.errors import (
    CreateTimeout,
    OpenEnvError,
    ProviderError,
    SandboxGone,
)
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
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._modal_images import Images
    from openenv_sandbox.spec import SandboxSpec

_DAY_S = 86_400.0
_AT_ONCE = 8


class ModalProvider(SandboxProvider):
    """Sandboxes of one app of a modal workspace."""

    name = "modal"
    title = "Modal"
    extra = "modal"
    sdk = ("modal",)
    env_vars = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
    Options = convert.ModalOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref", "folder", "template", "snapshot"}),
        private_images=True,
        start="command",
        runs_image=True,
        keeps=frozenset({"env", "workdir"}),
        exec=ExecCapabilities(stdin_stream=True, user=False),
        ports="any",
        exposure=frozenset({"private", "public"}),
        protocols=frozenset({"http", "tcp"}),
        network=frozenset({"full", "none", "hosts", "wildcard", "cidr4"}),
        isolation="gvisor",
        gpus=("T4", "L4", "A10", "A10G", "L40S", "A100", "A100-40GB", "A100-80GB", "H100", "H200", "B200"),
        sizes=Sizes(limits=frozenset({"cpus", "memory_mb"})),
        user=False,
        lifetime="server-fixed",
        max_lifetime_s=_DAY_S,
        dedupes_key=True,
        create_settle_s=60.0,
        attach=True,
        labels="filter",
        findable="label",
        lists_ended=False,
        snapshot=True,
        logs=True,
    )
    verified = Verified("emulator", sdk="modal 1.6.4", date="2026-11-30", note="no request reached modal itself")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        from openenv_providers._modal_images import Images

        chosen: convert.ModalOptions = self.options
        self.account = login.Account(chosen.profile, chosen.environment, chosen.app, chosen.timeout_s)
        self.images: Images = Images(self.account, chosen.registry_secret)

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """SDK and login, in this order; nothing is imported."""
        try:
            if find_spec("modal") is None:
                return Check(False, "not installed", install_hint(cls))
            missing = login.missing_login(cls.parse_options(options).profile)
        except OpenEnvError as error:
            return Check(False, error.message, error.hint or "see docs/backends/modal.md")
        except Exception as error:
            return Check(False, f"cannot tell: {type(error).__name__}", login.TOKEN_HINT)
        return Check(not missing, missing, login.TOKEN_HINT if missing else "")

    def effective_capabilities(self) -> Capabilities:
        """More isolation where the option asks for virtual machines."""
        return replace(self.capabilities, isolation="vm") if self.options.runtime == "vm" else self.capabilities

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """Refuse TCP ports that shall be private: their only way is an open tunnel."""
        convert.refuse_private_tcp(spec)
        return spec

    def scope(self) -> str:
        """Service, login, environment and app."""
        return self.account.scope()

    # ------------------------------------------------------------------------------------------------- images

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """A folder also depends on how it is built."""
        keep = ":kept" if image.kind == "folder" and self.options.keep_openenv else ""
        return f"{super().prepare_key(spec, image)}{keep}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """Import a ref, build a folder, or look an image up by its id."""
        auth, fresh = spec.registry_auth, spec.pull == "always"
        if image.kind in ("template", "snapshot"):
            return await self.images.by_id(image)
        if image.kind == "folder":
            keep = self.options.keep_openenv
            return await self.images.from_folder(image, auth, fresh=fresh, keep=keep, on_log=on_log)
        return await self.images.from_registry(image, auth, fresh=fresh, on_log=on_log)

    async def list_prepared(self) -> Sequence[Prepared]:
        """What this process built or kept: modal lists no images. It removes snapshots after 30 days."""
        return list(self.images.made.values())

    async def drop(self, prepared: Prepared) -> None:
        """Delete the image."""
        await self.images.drop(prepared.ref)

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Create under the key as name; a name that is taken is the sandbox of an earlier try."""
        import modal
        import modal.exception as theirs

        what, limit = f"creating a sandbox from {prepared.ref}", spec.timeouts.create
        app = await self.account.app(create=True)
        find = self.images.bare if convert.needs_bare(prepared, spec) else self.images.get
        image = await find(prepared.ref)
        tunnels = convert.tunnels(spec)
        arguments = convert.arguments(spec, key, tunnels, self.options)
        request = modal.Sandbox.create.aio(
            *convert.command(prepared, spec), app=app, image=image, client=await self.account.client(), **arguments
        )
        try:
            handle = await asyncio.wait_for(request, limit)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise CreateTimeout(f"{what}: not within {limit:g} s", provider=self.name, outcome="unknown") from error
        except theirs.AlreadyExistsError as error:
            return await self._adopt(key, error)
        except Exception as error:
            raise login.translate(error, what=what, started=True) from error
        now = time.time()
        info = SandboxInfo(
            ref=SandboxRef(self.name, self.scope(), str(handle.object_id), key),
            status="running",
            labels=dict(spec.labels),
            created_at=now,
            expires_at=now + arguments["timeout"],
            resources=spec.resources,
            isolation=self.effective_capabilities().isolation,
            image=prepared.ref,
        )
        from openenv_providers._modal_sandbox import ModalSandbox

        return ModalSandbox(self, handle, info, tunnels, prepared.image)

    async def _adopt(self, key: str, error: BaseException) -> Sandbox:
        """By name, which is known at once, where a listing may lag behind."""
        import modal

        client, account = await self.account.client(), self.account
        request = modal.Sandbox.from_name.aio(
            account.app_name, key, environment_name=account.environment, client=client
        )
        with contextlib.suppress(login.NotThere, SandboxGone):
            handle = await account.call(f"looking for the sandbox named {key}", request)
            sandbox = await self.attach(SandboxRef(self.name, self.scope(), str(handle.object_id), key))
            if sandbox.ref.key == key:
                return sandbox
        raise ProviderError(
            f"the name {key} is taken, and no sandbox of ours has it",
            provider=self.name,
            outcome="unknown",
            retryable=True,
        ) from error

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """By tag."""
        return [
            SandboxRef(self.name, self.scope(), str(handle.object_id), key) for handle in await self._rows({KEY: key})
        ]

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by id."""
        from openenv_providers._modal_sandbox import ModalSandbox

        handle = await self._handle(ref)
        if handle.returncode is not None:
            raise SandboxGone(f"the sandbox ended (exit code {handle.returncode})", ref=ref)
        info, tunnels = await self._described(handle)
        return ModalSandbox(self, handle, replace(info, ref=replace(ref, key=info.ref.key)), tunnels, None)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Pages by the server, which filters; the tags of each come by a request of their own, a few at once."""
        rows = await self._rows(labels)
        for start in range(0, len(rows), _AT_ONCE):
            found = await asyncio.gather(*(self._seen(row) for row in rows[start : start + _AT_ONCE]))
            for info in found:
                if info is not None and all(info.labels.get(name) == value for name, value in labels.items()):
                    yield info

    async def _seen(self, handle: Any) -> SandboxInfo | None:
        try:
            return (await self._described(handle))[0]
        except SandboxGone:
            return None  # it ended since it was listed

    async def _rows(self, labels: Mapping[str, str]) -> Sequence[Any]:
        import modal

        app = await self.account.app(create=False)
        if app is None:
            return []
        client = await self.account.client()

        async def read() -> Any:
            return [
                row async for row in modal.Sandbox.list.aio(app_id=app.app_id, tags=dict(labels) or None, client=client)
            ]

        rows: Sequence[Any] = await self.account.call("listing sandboxes", read())
        return rows

    async def _described(self, handle: Any) -> tuple[SandboxInfo, dict[int, str]]:
        ref = SandboxRef(self.name, self.scope(), str(handle.object_id))
        tags = await self.account.call("reading the tags", handle.get_tags.aio(), ref=ref)
        return convert.described(ref, dict(tags), handle.returncode, self.effective_capabilities().isolation)

    async def _handle(self, ref: SandboxRef) -> Any:
        import modal

        client = await self.account.client()
        return await self.account.call(
            "looking up the sandbox", modal.Sandbox.from_id.aio(ref.id, client=client), ref=ref
        )

    async def delete(self, ref: SandboxRef) -> None:
        """Terminate; one that ended or does not exist is fine."""
        with contextlib.suppress(SandboxGone):
            handle = await self._handle(ref)
            if handle.returncode is None:
                await self.account.call("terminating the sandbox", handle.terminate.aio(), ref=ref, started=True)

    async def aclose(self) -> None:
        """Close the client."""
        await self.account.aclose()
