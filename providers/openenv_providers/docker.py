"""Sandboxes as containers of a docker daemon: the local one, or whichever DOCKER_HOST or the docker context names.

A container has no end of its own here: it carries an expiry label that any later openenv process or ``openenv gc``
honours. Values of ``env`` and ``secrets`` can be read by whoever may ask the daemon (``docker inspect``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from openenv_providers import _docker_convert as convert
from openenv_providers._docker_daemon import REMEDY, Daemon
from openenv_sandbox import _dockerhost
from openenv_sandbox.backend_kit import undo
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes
from openenv_sandbox.errors import CapabilityError, OpenEnvError, ProviderError, ProviderUnavailable, SandboxGone
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
    install_hint,
)
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_sandbox.capabilities import Isolation
    from openenv_sandbox.spec import SandboxSpec

_GONE_S = 30.0


class DockerOptions(ProviderOptions):
    """Options of docker.

    Attributes:
        host: The daemon's address instead of DOCKER_HOST and the docker context.
        runtime: OCI runtime, e.g. ``runsc``; None for the daemon's default.
        emulation: The daemon's machine also runs images of other architectures than its own.
        keep_openenv: Folders are built as their author wrote them, without installing the running openenv.
        host_port: Port of this machine at which the server is published; None lets the daemon choose a free one.
        timeout_s: For one request to the daemon, in seconds.
    """

    host: str | None = trusted()
    runtime: str | None = trusted()
    emulation: bool = False
    keep_openenv: bool = False
    host_port: int | None = Field(default=None, ge=1, le=65535)
    timeout_s: float = 120.0


class DockerProvider(SandboxProvider):
    """Containers of one docker daemon."""

    name = "docker"
    title = "Docker"
    extra = "docker"
    sdk = ("docker",)
    Options = DockerOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref", "folder", "snapshot"}),
        private_images=True,
        local_images=True,
        start="command",
        runs_image=True,
        exec=ExecCapabilities(stdin_stream=True),
        ports="at-create",
        exposure=frozenset({"private"}),
        network=frozenset({"full", "none"}),
        isolation="container",
        hardening=True,
        gpus=("*",),
        sizes=Sizes(limits=frozenset({"cpus", "memory_mb"})),
        user=True,
        lifetime="none",
        dedupes_key=True,
        create_settle_s=10.0,
        attach=True,
        labels="filter",
        findable="label",
        pause=True,
        snapshot=True,
        logs=True,
    )
    verified = Verified("engine", sdk="docker 7.2.0", date="2026-11-30", note="engine 20.10, Linux x86-64")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.daemon = Daemon(_dockerhost.resolve(self.options.host), self.options.timeout_s)
        self._inside: bool | None = None

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """SDK, address, socket, in this order; at most two seconds, and nothing is imported."""
        try:
            if find_spec("docker") is None:
                return Check(False, "not installed", install_hint(cls))
            host = _dockerhost.resolve(cls.parse_options(options).host)
        except OpenEnvError as error:
            return Check(False, error.message, error.hint or "")
        except Exception as error:
            return Check(False, f"cannot tell: {type(error).__name__}")
        if host.url.startswith("npipe://"):
            return Check(False, f"{host.source} is npipe://, which is not supported", "DOCKER_HOST=tcp://… or ssh://…")
        if host.url.startswith("ssh://"):  # what is not on this machine is not tried here
            there = shutil.which("ssh") is not None
            return Check(there, "" if there else "no ssh command is on PATH", "" if there else "install openssh-client")
        state, reason = _dockerhost.probe(host)
        return Check(state == "ready", reason and f"{reason} ({host.source})", REMEDY[state])

    def effective_capabilities(self) -> Capabilities:
        """More isolation behind a stronger runtime."""
        return replace(self.capabilities, isolation=self._isolation())

    def fit(self, spec: SandboxSpec, image: Image) -> SandboxSpec:
        """Refuse what only the daemon's machine decides: which GPU it has."""
        convert.gpu_count(spec)
        return spec

    def scope(self) -> str:
        """The daemon's address."""
        return self.daemon.host.url

    # ------------------------------------------------------------------------------------------------- images

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """A folder also depends on how it is built."""
        keep = ":kept" if image.kind == "folder" and self.options.keep_openenv else ""
        return f"{super().prepare_key(spec, image)}{keep}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """Build a folder, or pull a ref that the daemon lacks."""
        from openenv_providers import _docker_images

        if image.kind == "folder":
            mine = {name: value for name, value in spec.labels.items() if name == "oe-install"}
            return await _docker_images.build(self.daemon.host, image, on_log, self.options.keep_openenv, mine)
        if image.kind == "template":
            raise CapabilityError("docker has no templates", field="image", provider=self.name)
        return await _docker_images.ensure(self.daemon, image, on_log, spec, emulation=self.options.emulation)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Images built from folders, and snapshots."""
        from openenv_providers import _docker_images

        return await _docker_images.ours(self.daemon)

    async def drop(self, prepared: Prepared) -> None:
        """Remove the image; one that a container uses is refused by the daemon."""
        from openenv_providers import _docker_images

        await _docker_images.remove(self.daemon, prepared.ref)

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """Create and start; the key is the container's name, so that a second create takes over the first one's."""

        def make(api: Any) -> str:
            arguments = convert.create_arguments(api, prepared, spec, key, self.options)
            try:
                return str(api.create_container(**arguments)["Id"])
            except Exception as error:
                if getattr(getattr(error, "response", None), "status_code", None) != 409:
                    raise
                there = api.inspect_container(key)
                if (there["Config"].get("Labels") or {}).get(KEY) != key:
                    raise
                return str(there["Id"])

        what = f"creating a container from {prepared.ref}"
        identifier = await self.daemon.call(what, make, started=True)
        ref = SandboxRef(self.name, self.scope(), identifier, key)
        try:
            # Starting what runs already is no error to the daemon.
            await self.daemon.call(what, lambda api: api.start(identifier), ref=ref, started=True)
            return await self.attach(ref)
        except OpenEnvError as error:
            if not isinstance(error, ProviderUnavailable):
                # A container that cannot start stays in ``created``; without it nothing exists.
                await undo(self.delete(ref), error)
            raise

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """Take over by id."""
        from openenv_providers._docker_sandbox import DockerSandbox

        inspected = await self.inspect(ref)
        return DockerSandbox(self, convert.info(self.scope(), inspected, self._isolation()), inspected)

    async def inspect(self, ref: SandboxRef) -> dict[str, Any]:
        """What the daemon says about a container.

        Raises:
            SandboxGone: It does not exist.
        """
        what = "looking at the container"
        found: dict[str, Any] = await self.daemon.call(what, lambda api: api.inspect_container(ref.id), ref=ref)
        return found

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """One request; the daemon filters. What only inherited our labels from its image is left out."""
        filters = {"label": [f"{name}={value}" for name, value in labels.items()]}
        rows = await self.daemon.call("listing containers", lambda api: api.containers(all=True, filters=filters))
        for row in rows:
            found = convert.listed(self.scope(), row, self._isolation())
            if found.ref.key is not None or KEY not in found.labels:
                yield found

    async def delete(self, ref: SandboxRef) -> None:
        """Kill and remove, anonymous volumes too, and wait while somebody else is removing it."""

        def remove(api: Any) -> bool:
            try:
                api.remove_container(ref.id, force=True, v=True)
            except Exception as error:
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status == 409 and "in progress" in str(error):
                    return False
                if status != 404:
                    raise
            return True

        if await self.daemon.call("removing the container", remove, ref=ref, started=True):
            return
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + _GONE_S, 0.02
        while loop.time() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)
            try:
                await self.inspect(ref)
            except SandboxGone:
                return
        raise ProviderError(
            f"the daemon is still removing the container after {_GONE_S:g} s",
            ref=ref,
            outcome="unknown",
            retryable=True,
            hint="docker ps -a shows it as dead or removing: look at the daemon's log",
        )

    async def inside_a_container(self) -> bool:
        """Whether this process is in a container of this daemon, where the daemon's 127.0.0.1 is not ours."""
        if self._inside is None:
            marked = await asyncio.to_thread(os.path.exists, "/.dockerenv")
            name = socket.gethostname()
            self._inside = False
            if marked:  # a machine made from an image has the mark too
                with contextlib.suppress(OpenEnvError):
                    found = await self.inspect(SandboxRef(self.name, self.scope(), name))
                    self._inside = (found.get("HostConfig") or {}).get("NetworkMode") != "host"
        return self._inside

    async def aclose(self) -> None:
        """Close the client."""
        await asyncio.to_thread(self.daemon.close)

    def _isolation(self) -> Isolation:
        runtime = self.options.runtime or ""
        return "gvisor" if runtime.startswith("runsc") else "vm" if runtime.startswith("kata") else "container"
