"""Taking over a sandbox that another process made."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from openenv_sandbox import redact, registry
from openenv_sandbox.clock import CLOCK
from openenv_sandbox.errors import CapabilityError, ConfigError
from openenv_sandbox.events import Event, Reporter
from openenv_sandbox.exec_server import ExecServer, found
from openenv_sandbox.journal import open_journal
from openenv_sandbox.keepalive import lease_s
from openenv_sandbox.lifecycle import daemon_call, finish
from openenv_sandbox.owner import Ownership, quietly
from openenv_sandbox.process import Process
from openenv_sandbox.request import choose
from openenv_sandbox.starting import TOKEN, CreatedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openenv_sandbox.capabilities import Capabilities
    from openenv_sandbox.provider import SandboxRef
    from openenv_sandbox.registry import Lease
    from openenv_sandbox.request import Which
    from openenv_sandbox.running import RunningSandbox


async def take_over(
    ref: SandboxRef,
    options: Any,
    profile: str | None,
    on_event: Callable[[Event], object] | None,
    own: bool,
    fields: Mapping[str, Any],
    *,
    journal: str | None = None,
    which: Which | None = None,
) -> RunningSandbox:
    """See `openenv_sandbox.attach`."""
    chosen, options, settings = await daemon_call(choose, which or ref.provider, options, profile)
    lease = await registry.acquire(chosen, options)
    try:
        return await _attach(ref, lease, journal or settings.journal, on_event, own, fields)
    except BaseException:
        await quietly(lease.release())
        raise


async def _attach(
    ref: SandboxRef,
    lease: Lease,
    mode: Any,
    on_event: Callable[[Event], object] | None,
    own: bool,
    fields: Mapping[str, Any],
) -> RunningSandbox:
    from openenv_sandbox.running import RunningSandbox
    from openenv_sandbox.spec import SandboxSpec

    provider = lease.provider
    caps = provider.effective_capabilities()
    if not caps.attach:
        raise CapabilityError(f"{provider.name} cannot attach to a sandbox", field="attach", ref=ref)
    if ref.scope != provider.scope():
        raise ConfigError(
            f"{ref} belongs to {ref.scope}, the configured {provider.name} is {provider.scope()}",
            provider=provider.name,
            hint="use the profile, account or daemon it was made with",
        )
    journal = await open_journal(mode)
    sandbox = await provider.attach(await journal.full_ref(ref))
    spec = SandboxSpec.model_validate({"image": sandbox.info.image or "attached", **fields})
    key = sandbox.ref.key
    given = spec.secrets.get(TOKEN)
    token = given.get_secret_value() if given is not None else await journal.token_of(key) if key else None
    owned = own and key is not None
    if owned:
        await journal.created(sandbox.ref, expires_at=sandbox.info.expires_at, token=token)
    reporter = Reporter(provider.name, on_event)
    reporter.key, reporter.ref = sandbox.ref.key or "", sandbox.ref
    hidden = [*spec.plain_secrets().values(), *([token] if token else [])]
    redact.register(*hidden)
    owner = Ownership(sandbox, lease, journal, spec, reporter, owned=owned, forget=lambda: redact.forget(*hidden))
    face = partial(RunningSandbox, sandbox, provider=provider, spec=spec, owner=owner)
    server = await found(face()) if caps.start == "exec" and caps.exec is not None else None
    if server is not None:
        face = partial(face, image=server[1])
        owner.server = ExecServer(face(), process=Process(face(), server[0].id))
    else:
        owner.server = CreatedServer(sandbox)
    reporter.emit("created", "attached")
    if owned:
        try:
            await _look_after(owner, caps)
        except BaseException:
            await finish(quietly(owner.detach()), timeout=spec.timeouts.cleanup)
            raise
    running = face(token=token)
    owner.count_use(running, "_run")
    return running


async def _look_after(owner: Ownership, caps: Capabilities) -> None:
    """Keep it alive from now on as a launch does, and notice its end."""
    timeouts, sandbox = owner.spec.timeouts, owner.sandbox
    lease = lease_s(timeouts, caps)
    ends = sandbox.info.expires_at
    if timeouts.lifetime is not None and caps.lifetime == "server-extendable":
        # A lifetime that the user said is not renewed: it is given once.
        if ends is None or ends < CLOCK.get().time() + lease:
            await owner.journal.extended(owner.key, await sandbox.extend(lease))
    owner.start_keep_alive(lease)
    owner.watch(fresh=False)
