"""Sandboxes on this machine: a supervised process tree, under bubblewrap where there is one.

Needs nothing to be installed. It runs environment folders and installed environment packages, not registry refs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from openenv_providers import _local_bwrap as bwrap
from openenv_providers._local_bwrap import INSTALL
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities, Sizes
from openenv_sandbox.errors import (
    CapabilityError,
    ImageError,
    ProviderError,
    ProviderUnavailable,
    SandboxGone,
    TrustError,
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
    Status,
    Verified,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from openenv_providers._local_plan import Interpreter
    from openenv_providers._local_sandbox import LocalSandbox
    from openenv_sandbox.folder import Folder
    from openenv_sandbox.spec import SandboxSpec

log = logging.getLogger("openenv.provider.local")
STARTS_AT_ONCE = 16
_KEY = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_warned: set[str] = set()


class LocalOptions(ProviderOptions):
    """Options of the local backend. All are trusted: each decides what runs, and how far it is kept away."""

    isolation: Literal["auto", "bwrap", "none"] = trusted("auto")
    """``bwrap`` refuses to start anything without bubblewrap; ``auto`` warns once; ``none`` is silent."""
    bwrap: str | None = trusted(None)
    """The bubblewrap executable instead of the one on PATH."""
    python: str | None = trusted(None)
    """The interpreter that environments are made from, instead of the running one or one that fits."""


class LocalProvider(SandboxProvider):
    """Sandboxes on this machine."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "This machine"
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"folder"}),
        start="command",
        runs_image=True,
        exec=ExecCapabilities(stdin_stream=True, user=False, kill=True),
        ports="any",
        network=frozenset({"full", "none"}),
        isolation="process",
        hardening=True,
        sizes=Sizes(limits=frozenset()),
        user=False,
        lifetime="none",
        create_settle_s=0.0,
        labels="client-side",
        findable="id",
        pause=True,
        reload=True,
    )
    Options = LocalOptions
    verified: ClassVar[Verified] = Verified("engine", sdk="bubblewrap 0.8", date="2026-11-30", note="and without it")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        from openenv_sandbox._paths import state_dir
        from openenv_sandbox.lifecycle import CountedThreads

        self._root = state_dir() / "local"
        self._scope = "local-" + hashlib.sha256(os.fsencode(os.path.realpath(self._root))).hexdigest()[:16]
        self._threads = CountedThreads(STARTS_AT_ONCE)
        self._plans: dict[str, tuple[Folder, Interpreter]] = {}
        self._swept = False
        self._bwrap, self._why_not = bwrap.find(self.options.isolation, self.options.bwrap)

    @classmethod
    def check(cls, options: Any = None) -> Check:
        """Whether sandboxes can be started, and what is missing for isolation."""
        if os.name != "posix":
            return Check(False, "needs a POSIX system", "use docker or a remote backend")
        try:
            parsed = cls.parse_options(options)
            found, why_not = bwrap.find(parsed.isolation, parsed.bwrap)
        except Exception as error:
            return Check(False, str(error))
        if found is None and parsed.isolation == "bwrap":
            return Check(False, why_not, INSTALL)
        return Check(True, "" if found else f"without isolation: {why_not}", "" if found else INSTALL)

    def effective_capabilities(self) -> Capabilities:
        """Without bubblewrap: no isolation, no closed network, no pause."""
        if self._bwrap is not None:
            return self.capabilities
        return replace(self.capabilities, isolation="none", network=frozenset({"full"}), hardening=False, pause=False)

    def scope(self) -> str:
        """This machine and state folder."""
        return self._scope

    def prepare_key(self, spec: SandboxSpec, image: Image) -> str:
        """The folder itself, not only its content: it is run where it lies."""
        return f"local:{image.path}:{image.digest}:{self.options.python or sys.executable}"

    async def prepare(self, spec: SandboxSpec, image: Image, *, on_log: LogSink) -> Prepared:
        """See the contract. Makes an environment of the folder's own when its dependencies are not at hand."""
        if image.kind != "folder" or image.path is None:
            raise ImageError(
                f"local runs environment folders and installed packages, not {image.kind} {image.name!r}",
                provider=self.name,
                hint="give the folder (./envs/…), or a backend that runs refs: provider='docker'",
            )
        if self._bwrap is None and not spec.trust and image.source.startswith(("hf://", "git+")):
            raise TrustError(
                f"{image.source} comes from elsewhere and would run on this machine without isolation",
                provider=self.name,
                hint=f"{INSTALL}; or read the code and pass trust=True",
            )
        await self._plan(image.path, on_log)
        return Prepared(ref=image.path, image=image.config, digest=image.digest)

    async def create(self, prepared: Prepared, spec: SandboxSpec, *, key: str) -> Sandbox:
        """See the contract."""
        from openenv_providers import _local_plan as plan
        from openenv_providers import _local_start as starting
        from openenv_providers._local_frames import START

        self._refuse(spec)
        folder, interpreter = self._plans.get(prepared.ref) or await self._plan(prepared.ref, log.debug)
        if not await self._threads.run(os.access, interpreter.executable, os.X_OK):  # its environment was removed
            folder, interpreter = await self._plan(prepared.ref, log.debug)
        argv, takes_socket = plan.server_argv(spec.command, folder, interpreter)
        if spec.reload:
            argv = plan.reloading(argv, folder, interpreter, takes_socket)
        job = starting.Job(self._place(key), folder, interpreter, argv, takes_socket, spec, self._bwrap)
        try:
            if not self._swept:
                self._swept = True
                await self._threads.run(starting.sweep, self._root)
            owner, first = await self._threads.run(starting.start, job)
        except FileExistsError as error:
            raise ProviderError(f"there is a sandbox {key} already", provider=self.name) from error
        except OSError as error:
            raise ProviderError(f"the supervisor cannot be started: {error}", provider=self.name) from error
        sandbox = self._sandbox(key, job.meta)
        if not await sandbox.own(owner, START, first):
            code = await self._threads.run(starting.wait, job.folder)
            said = await self._threads.run(starting.messages, job.folder)
            await sandbox.aclose()
            await self._threads.run(starting.remove, job.folder)
            raise ProviderError(f"the supervisor ended with code {code}: {said}", provider=self.name)
        return sandbox

    async def _plan(self, path: str, on_log: LogSink) -> tuple[Folder, Interpreter]:
        from openenv_providers._local_venv import resolve

        self._plans[path] = await resolve(Path(path), self.options.python, self._threads, on_log)
        return self._plans[path]

    def _refuse(self, spec: SandboxSpec) -> None:
        if self._bwrap is not None:
            return
        if self.options.isolation == "bwrap":
            raise ProviderUnavailable(self._why_not, provider=self.name, hint=INSTALL)
        wanted = {"network": spec.network.mode != "full", "hardening": spec.hardening == "strict"}
        for field in (name for name, refused in wanted.items() if refused):
            text = f"{field} as asked for needs bubblewrap: {self._why_not}"
            raise CapabilityError(text, field=field, provider=self.name, hint=INSTALL)
        if self.options.isolation == "auto" and not _warned:
            _warned.add(self.name)
            log.warning("environments run without isolation: %s (%s)", self._why_not, INSTALL)

    def _place(self, key: str) -> Path:
        if not _KEY.fullmatch(key):  # it names a folder that will be removed with everything in it
            raise SandboxGone(f"{key!r} names no local sandbox", provider=self.name)
        return self._root / key

    def _ref(self, key: str) -> SandboxRef:
        return SandboxRef(self.name, self.scope(), key, key)

    def _sandbox(self, key: str, meta: Mapping[str, Any], status: Status = "running") -> LocalSandbox:
        from openenv_providers._local_sandbox import LocalSandbox

        return LocalSandbox(
            self._info(key, meta, status),
            self._root / key,
            port=int(meta["port"]),
            own_network=bool(meta["own_network"]),
            can_pause=meta["isolation"] == "process",
            remove=self.delete,
        )

    def _info(self, key: str, meta: Mapping[str, Any], status: Status) -> SandboxInfo:
        return SandboxInfo(
            ref=self._ref(key),
            status=status,
            labels=dict(meta.get("labels") or {}),
            created_at=meta.get("created_at"),
            isolation=meta.get("isolation") or "unknown",
            image=meta.get("image"),
        )

    async def find(self, key: str) -> Sequence[SandboxRef]:
        """See the contract."""
        known = bool(_KEY.fullmatch(key)) and await self._threads.run(os.path.exists, self._root / key)
        return [self._ref(key)] if known else []

    async def attach(self, ref: SandboxRef) -> Sandbox:
        """See the contract. Whoever attaches is an owner too: the sandbox ends when its last owner dies."""
        from openenv_providers import _local_link as link
        from openenv_providers import _local_start as starting

        place = self._place(ref.id)
        meta = await self._threads.run(starting.read_meta, place)
        if meta is None:
            raise SandboxGone(f"there is no local sandbox {ref.id}", ref=ref)
        try:
            sock = await link.connect(place)
        except OSError as error:
            if not link.unreachable(error):
                raise ProviderError(f"the supervisor cannot be reached: {error}", ref=ref, outcome="unknown") from error
            sock = None
        sandbox = self._sandbox(ref.id, meta, "running" if sock else "stopped")
        await sandbox.own(sock)
        return sandbox

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See the contract."""
        from openenv_providers import _local_link as link
        from openenv_providers import _local_start as starting

        for key, meta in await self._threads.run(starting.everything, self._root):
            if labels.items() <= dict(meta.get("labels") or {}).items():
                yield self._info(key, meta, await link.status(self._root / key))

    async def delete(self, ref: SandboxRef) -> None:
        """See the contract."""
        from openenv_providers import _local_link as link
        from openenv_providers import _local_start as starting

        if not _KEY.fullmatch(ref.id):
            return
        place = self._root / ref.id
        try:
            await link.end(place)
        except OSError as error:
            text = f"the local sandbox {ref.id} cannot be ended: {error.strerror}"
            raise ProviderError(text, ref=ref, outcome="unknown", retryable=True) from error
        await self._threads.run(starting.wait, place)
        await self._threads.run(starting.remove, place)

    async def list_prepared(self) -> Sequence[Prepared]:
        """Cached environments."""
        from openenv_providers import _local_venv as venv

        return [Prepared(ref=str(place), owned=True) for place in await self._threads.run(venv.made)]

    async def drop(self, prepared: Prepared) -> None:
        """Remove a cached environment."""
        from openenv_providers import _local_venv as venv

        await self._threads.run(venv.remove, Path(prepared.ref))
