"""Taking over a sandbox that another process made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv_sandbox import redact, registry
from openenv_sandbox.errors import CapabilityError, ConfigError
from openenv_sandbox.events import Event, Reporter
from openenv_sandbox.journal import open_journal
from openenv_sandbox.lifecycle import daemon_call
from openenv_sandbox.owner import Ownership, quietly
from openenv_sandbox.request import choose
from openenv_sandbox.starting import TOKEN, CreatedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    which: Which | None = None,
) -> RunningSandbox:
    """See `openenv_sandbox.attach`."""
    chosen, options, settings = await daemon_call(choose, which or ref.provider, options, profile)
    lease = await registry.acquire(chosen, options)
    try:
        return await _attach(ref, lease, settings.journal, on_event, own, fields)
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
    owner.server = CreatedServer(sandbox)
    reporter.emit("created", "attached")
    return RunningSandbox(sandbox, provider=provider, spec=spec, owner=owner, token=token)
