"""The stages of a launch, in order, with one way out of each: nothing is left behind.

configuration → capability check → journal → prepare → create → start server → endpoint → ready
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from openenv_sandbox import capcheck, pushing, redact, registry
from openenv_sandbox.breaker import breaker
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.creating import Creation, labels_for, note
from openenv_sandbox.errors import OpenEnvError, SandboxError, SandboxGone, ServerExited
from openenv_sandbox.events import Reporter
from openenv_sandbox.exec_server import ExecServer
from openenv_sandbox.image_registries import with_login
from openenv_sandbox.journal import open_journal
from openenv_sandbox.keepalive import lease_s
from openenv_sandbox.lifecycle import daemon_call, finish, keep
from openenv_sandbox.owner import Ownership, quietly
from openenv_sandbox.prepare import prepare
from openenv_sandbox.ready import LOG_LINES, wait_ready
from openenv_sandbox.request import Request, resolve
from openenv_sandbox.starting import TOKEN, CreatedServer, at_create, command_for, config_for, supplied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.journal import Journal
    from openenv_sandbox.provider import Endpoint, ImageConfig, Prepared, Sandbox, SandboxProvider
    from openenv_sandbox.pushing import Push
    from openenv_sandbox.registry import Lease
    from openenv_sandbox.request import Resolved
    from openenv_sandbox.running import RunningSandbox
    from openenv_sandbox.spec import SandboxSpec

# Images started by the uvicorn command read these; those that call uvicorn.run() do not.
SERVER_ENV = {
    "UVICORN_WS_MAX_SIZE": str(64 << 20),
    "UVICORN_WS_PER_MESSAGE_DEFLATE": "false",
}
REAP_S = 60.0
_log = logging.getLogger("openenv.launch")


@dataclass
class Started:
    """A running sandbox and, where a server is wanted, the way to it."""

    running: RunningSandbox
    owner: Ownership
    token: str
    endpoint: Endpoint | None = None


async def start(request: Request, *, serve: bool) -> Started:
    """Run every stage.

    Args:
        request: What was asked for.
        serve: Wait until the server in it is ready; else the sandbox is handed out as soon as it runs.

    Raises:
        OpenEnvError: The first thing that failed; what cleanup met is in its notes.
    """
    return await _Launch(request, serve).run()


class _Launch:
    def __init__(self, request: Request, serve: bool) -> None:
        self.request, self.serve = request, serve
        self.token = secrets.token_urlsafe(32)
        self.hidden: list[str] = [self.token]
        self.reporter = Reporter("", request.on_event)
        self.lease: Lease | None = None
        self.creation: Creation | None = None
        self.owner: Ownership | None = None
        self.endpoint: Endpoint | None = None
        self.build_log: list[str] = []
        self.push: Push | None = None

    async def run(self) -> Started:
        redact.register(*self.hidden)
        try:
            return await self._stages()
        except BaseException as error:
            await self._undo(error)
            if isinstance(error, OpenEnvError):
                if error.provider is None:
                    error.provider = self.reporter.provider or None
                redact.mask_error(error)
            raise
        finally:
            redact.forget(*self.hidden)  # the owner has registered them for itself

    async def _stages(self) -> Started:
        plan = await resolve(self.request)
        more = [value.get_secret_value() for value in plan.spec.secrets.values()]
        redact.register(*more)
        self.hidden += more
        self.reporter.provider = plan.which if isinstance(plan.which, str) else plan.which.name
        self.lease = await registry.acquire(plan.which, plan.options)
        provider = self.lease.provider
        caps = provider.effective_capabilities()
        self.push = await pushing.needed(plan.image, caps, plan.settings)
        if self.push is not None:
            plan = replace(plan, image=self.push.image)
        asked = await daemon_call(with_login, plan.spec, plan.image, caps, plan.settings)
        if asked.registry_auth is not None:
            self.hidden.append(asked.registry_auth.password.get_secret_value())
            redact.register(self.hidden[-1])
        spec = capcheck.check(asked, plan.image, caps, provider=provider.name, serve=self.serve)
        spec = provider.fit(spec, plan.image)
        breaker(provider.name).check()
        journal = await open_journal(plan.journal)
        _reap_later(provider, journal)
        try:
            return await self._sandbox(plan, provider, journal, spec)
        except SandboxError as error:
            if type(error) is not SandboxError or not error.retryable:
                raise
            # It came up and takes no command. One more try, then it is the backend's state, not bad luck.
            _log.warning("%s; trying one more", error.message)
            await self._undo(error)
            self.owner = self.creation = self.lease = None  # undoing gave the lease back
            self.lease = await registry.acquire(plan.which, plan.options)
            return await self._sandbox(plan, self.lease.provider, journal, spec)

    async def _sandbox(self, plan: Resolved, provider: SandboxProvider, journal: Journal, spec: SandboxSpec) -> Started:
        caps, clock = provider.effective_capabilities(), CLOCK.get()
        key = self.reporter.key = journal.new_key()
        timeouts = spec.timeouts
        expires_at = clock.time() + timeouts.effective_lifetime
        settle = timeouts.prepare + timeouts.create + caps.create_settle_s
        full = self._complete(spec, caps, journal, key, expires_at)
        self.creation = Creation(provider, journal, key, full, self.reporter, expires_at, self.token)
        await self.creation.take_place()
        scope, note_text = provider.scope(), plan.image.source or plan.image.name
        await journal.intent(key, provider.name, scope, clock.time() + settle, note_text, expires_at=expires_at)
        self.reporter.emit("building", f"preparing {note_text}")
        # What is made for later is known by its install; token and secrets are nothing that an image should see.
        labelled = spec.model_copy(update={"labels": {**spec.labels, "oe-install": journal.install_id}})
        prepared = await prepare(provider, labelled, plan.image, on_log=self._on_log, push=self.push)
        # The request leaves now: from here on the row need not allow for the preparation.
        settle = timeouts.create + caps.create_settle_s
        await journal.intent(key, provider.name, scope, clock.time() + settle, note_text, expires_at=expires_at)
        config = await config_for(spec, plan.image, prepared, caps, serve=self.serve)
        command = command_for(spec, config, caps)
        added = supplied(spec, config, caps)
        self.creation.spec = full = at_create(full, added, command, config, caps)
        sandbox = await self._create(prepared, full)
        command = command or _argv(config)
        return await self._start(sandbox, journal, spec, caps, added, command, lease_s(timeouts, caps))

    async def _create(self, prepared: Prepared, full: SandboxSpec) -> Sandbox:
        assert self.creation is not None
        try:
            return await self.creation.run(prepared)
        except OpenEnvError as error:
            if self.build_log:
                note(error, "end of the build log:\n" + "\n".join(self.build_log[-50:]))
            raise

    def _complete(
        self, spec: SandboxSpec, caps: Capabilities, journal: Journal, key: str, expires_at: float
    ) -> SandboxSpec:
        """What the provider gets: our labels, token and server settings in it, and the server-side end."""
        from pydantic import SecretStr

        idle = caps.start == "exec"
        hidden = {} if idle else {**spec.secrets, TOKEN: SecretStr(self.token)}
        return spec.model_copy(
            update={
                "labels": labels_for(spec, journal, key, expires_at),
                "env": {**SERVER_ENV, **spec.env},
                "secrets": hidden,
                # A lease may be shorter than the use, which validation rightly refuses to users.
                "timeouts": spec.timeouts.model_copy(update={"lifetime": lease_s(spec.timeouts, caps)}),
            }
        )

    async def _start(
        self,
        sandbox: Sandbox,
        journal: Journal,
        spec: SandboxSpec,
        caps: Capabilities,
        added: ImageConfig,
        command: tuple[str, ...],
        lease: float,
    ) -> Started:
        from openenv_sandbox.running import RunningSandbox

        assert self.lease is not None
        hidden = tuple(self.hidden)
        redact.register(*hidden)
        self.reporter.ref = sandbox.ref
        self.owner = owner = Ownership(
            sandbox,
            self.lease,
            journal,
            spec,
            self.reporter,
            held=self.creation.held if self.creation is not None else None,
            forget=lambda: redact.forget(*hidden),
        )
        self.reporter.emit("created")
        owner.start_keep_alive(lease)
        face = partial(
            RunningSandbox, sandbox, provider=self.lease.provider, spec=spec, owner=owner, hidden=hidden, image=added
        )
        running = face(token=self.token)
        owner.count_use(running, "_run")
        logs: Callable[[], Awaitable[bytes]] | None
        self.reporter.emit("starting")
        if caps.start == "exec" and command:
            full = self._with_token(spec)
            env = {**added.env, **full.env, **full.plain_secrets()}
            server = ExecServer(
                face(), command, env=env, cwd=spec.workdir or added.workdir, user=spec.user or added.user
            )
            owner.server = server
            await server.start()
            logs = server.logs
        else:
            owner.server = CreatedServer(sandbox)
            logs = partial(sandbox.logs, tail=LOG_LINES) if caps.logs else None
        started = Started(running, owner, self.token)
        if self.serve:
            started.endpoint = self.endpoint = await self._ready(running, owner, spec, command, logs)
            owner.watch()
        return started

    def _with_token(self, spec: SandboxSpec) -> SandboxSpec:
        from pydantic import SecretStr

        secrets_ = {**spec.secrets, TOKEN: SecretStr(self.token)}
        return spec.model_copy(update={"env": {**SERVER_ENV, **spec.env}, "secrets": secrets_})

    async def _ready(
        self,
        running: RunningSandbox,
        owner: Ownership,
        spec: SandboxSpec,
        command: tuple[str, ...],
        logs: Callable[[], Awaitable[bytes]] | None,
    ) -> Endpoint:
        assert owner.server is not None
        try:
            endpoint = await wait_ready(
                running._way,
                owner.server,
                timeout=spec.timeouts.ready,
                token=self.token,
                command=command,
                port=spec.port,
                logs=logs,
            )
        except (ServerExited, SandboxGone) as error:
            breaker(running.ref.provider).died(error.message)
            raise
        self.reporter.emit("ready", endpoint.shown)
        return endpoint

    def _on_log(self, line: str) -> None:
        self.build_log.append(line)
        del self.build_log[:-50]
        self.reporter.emit("building", line)

    async def _undo(self, error: BaseException) -> None:
        """Remove whatever there is. What fails here is a note on ``error``, which stays the one that is raised."""
        if not isinstance(error, (asyncio.CancelledError, GeneratorExit)) and self.reporter.provider:
            self.reporter.emit("failed", str(error) or type(error).__name__)
        if self.endpoint is not None:
            await finish(quietly(self.endpoint.aclose()), timeout=5)
        if self.owner is not None:
            result = await finish(self.owner.delete(confirm=False), timeout=self.owner.spec.timeouts.cleanup + 5)
            if result.error is not None:
                note(error, str(result.error))
            return
        if self.creation is not None:
            certain = await self.creation.undo(error)
            if not certain:
                return  # the provider is still needed for what goes on in the background
        if self.lease is not None and self.owner is None:
            await finish(quietly(self.lease.release()), timeout=10)


def _argv(config: ImageConfig | None) -> tuple[str, ...]:
    return config.argv if config is not None else ()


def _reap_later(provider: SandboxProvider, journal: Journal) -> None:
    """In the background, what dead owners left in this provider and scope; once per process, scope and minute."""
    from openenv_sandbox import reaper

    loop = asyncio.get_running_loop()
    mark = (provider.name, provider.scope(), str(journal.folder))
    if journal.folder is None or loop.time() - _reaped.get(mark, -REAP_S) < REAP_S:
        return
    _reaped[mark] = loop.time()
    keep(reaper.reap(provider, journal, budget_s=REAP_S), name="openenv-reap")


_reaped: dict[tuple[str, str, str], float] = {}
