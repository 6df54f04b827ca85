"""A spec as the body of a create, what daytona says about a sandbox as ours, and the delete that both need."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from openenv_sandbox.backend_kit import poll, unix_time
from openenv_sandbox.errors import CapabilityError, ProviderError, SandboxGone
from openenv_sandbox.provider import SandboxInfo, SandboxRef, Status
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_providers._daytona_api import Api
    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.spec import SandboxSpec

GPUS = ("H100", "H200", "B200", "B300", "RTX-PRO-6000", "RTX-4090", "RTX-5090", "MI355X")
ENDED = frozenset({"destroyed"})
"""States of what no longer exists: the vendor still shows some of it for a while."""
GONE_S = 30.0
"""How long a sandbox may take to end after its delete was accepted, in seconds."""
_STATUS: Mapping[str, Status] = {
    **dict.fromkeys(("creating", "restoring", "starting", "pending_build", "building_snapshot"), "creating"),
    **dict.fromkeys(("pulling_snapshot", "resuming"), "creating"),
    **dict.fromkeys(("started", "resizing", "pausing"), "running"),
    "paused": "paused",
    **dict.fromkeys(("stopping", "stopped", "archiving", "archived", "destroying", "destroyed"), "stopped"),
    **dict.fromkeys(("error", "build_failed"), "failed"),
}
_NAME = re.compile(r"oe-(?P<install>[a-z0-9]+)-[a-z0-9-]+\Z")


def sizes(spec: SandboxSpec) -> dict[str, Any]:
    """Sizes in whole cores and GiB, rounded up, as both create calls take them; empty for the defaults."""
    wanted, found = spec.resources, dict[str, Any]()
    if wanted.cpus is not None:
        found["cpu"] = math.ceil(wanted.cpus)
    if wanted.memory_mb is not None:
        found["memory"] = math.ceil(wanted.memory_mb / 1024)
    if wanted.disk_mb is not None:
        found["disk"] = math.ceil(wanted.disk_mb / 1024)
    if wanted.gpu is not None:
        model, count = wanted.gpu
        found |= {"gpu": count, "gpu_type": [next(name for name in GPUS if name == model.upper())]}
    return found


def check_network(spec: SandboxSpec) -> None:
    """Refuse host names beside address ranges.

    Raises:
        CapabilityError: Whether the two lists add up or narrow each other is not documented.
    """
    if spec.network.hosts and spec.network.cidrs:
        raise CapabilityError(
            "daytona has one list of hosts and one of address ranges, and does not say what both together allow",
            field="network",
            provider="daytona",
            hint="give hosts or cidrs, not both",
        )


def body(prepared: Prepared, spec: SandboxSpec, key: str, target: str | None) -> Any:
    """The body of a create.

    The name is the key, which the vendor keeps unique. The TTL is the hard end. Nothing else may end it: not the
    timer for inactivity, which does not count traffic of ports as activity. And whatever stops it deletes it. Its
    user is the image's: what ``user`` changes is not documented, and core starts the server as the user asked for.
    """
    from daytona_api_client_async import CreateSandbox

    network = spec.network
    return CreateSandbox(
        name=key,
        snapshot=prepared.ref,
        env=dict(spec.env),
        labels={**spec.labels, KEY: key},
        public=False,
        target=target,
        auto_stop_interval=0,
        auto_pause_interval=0,
        auto_delete_interval=0,
        ttl_minutes=minutes(spec.timeouts.effective_lifetime),
        network_block_all=network.mode == "none",
        network_allow_list=",".join(network.cidrs) or None,
        domain_allow_list=",".join(network.hosts) or None,
    )


def minutes(seconds: float) -> int:
    """Whole minutes, never fewer than asked for."""
    return max(1, math.ceil(seconds / 60))


def snapshot_name(install: str, name: str, digest: str) -> str:
    """A snapshot's name: who made it, of what, and from which contents."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "env"
    return f"oe-{re.sub(r'[^a-z0-9]', '', install.lower()) or 'any'}-{slug}-{digest[:20]}"


def snapshot_labels(name: str) -> dict[str, str]:
    """What a snapshot's name tells; snapshots have no labels."""
    found = _NAME.match(name)
    return {"oe-install": found["install"]} if found else {}


def state(found: Any) -> str:
    """The vendor's word for what a sandbox is at."""
    return str(getattr(found.state, "value", ""))


def info(scope: str, found: Any) -> SandboxInfo:
    """From a sandbox or a row of a listing."""
    labels = dict(found.labels or {})
    key = labels.get(KEY)
    return SandboxInfo(
        # A fork has its origin's labels, and its own name.
        ref=SandboxRef("daytona", scope, found.id, key if key == found.name else None),
        status=_STATUS.get(state(found), "unknown"),
        labels=labels,
        created_at=unix_time(found.created_at),
        expires_at=unix_time(found.auto_destroy_at),
        resources=Resources(
            cpus=found.cpu or None,
            memory_mb=found.memory * 1024 or None,
            disk_mb=found.disk * 1024 or None,
            gpus=f"{found.gpu_type.value}:{found.gpu}" if found.gpu and found.gpu_type else None,
        ),
        isolation="container",
        image=found.snapshot,
    )


async def delete(api: Api, ref: SandboxRef) -> None:
    """Delete and wait for the end, which the vendor only promises.

    Raises:
        ProviderError: It is between two states, which ends; or it does not end.
    """
    what = "deleting the sandbox"
    look = partial(api.call, what, lambda clients: clients.sandboxes.get_sandbox(ref.id), ref=ref, started=True)
    try:
        await api.call(what, lambda clients: clients.sandboxes.delete_sandbox(ref.id), ref=ref, started=True)
        await poll(look, lambda found: state(found) in ENDED, deadline=GONE_S)
    except SandboxGone:
        return
    except TimeoutError:
        raise ProviderError(
            f"{what}: it still exists {GONE_S:g} s after the delete was accepted",
            ref=ref,
            outcome="unknown",
            retryable=True,
            hint="openenv gc removes it later",
        ) from None
