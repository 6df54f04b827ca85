"""Runloop's words and ours: sizes, the body of a create, what a view tells."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import KEY, SandboxInfo, SandboxRef, Status

if TYPE_CHECKING:
    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.spec import SandboxSpec

BLUEPRINT = "blueprint:"
"""Before the id of a blueprint in `Prepared.ref`, which else is a snapshot's: their ids tell nothing."""
POLICY = "policy:"
"""Before the id of a network policy in the ref of one that no devbox came of."""

CPUS = (0.5, 1.0, *(float(n) for n in range(2, 17, 2)))
MEMORY_GB = (1, *range(2, 65, 2))
ROOT = {"uid": 0, "username": "root"}
"""Who builds and commands run as: core gives commands the user they shall have, which only root can."""

_STATUS: dict[str, Status] = {
    "running": "running",
    "suspending": "paused",
    "suspended": "paused",
    "failure": "failed",
    "shutdown": "stopped",
}
_SIZES: dict[str, tuple[float, int, int]] = {
    "X_SMALL": (0.5, 1, 4),
    "SMALL": (1.0, 2, 4),
    "MEDIUM": (2.0, 4, 8),
    "LARGE": (2.0, 8, 16),
    "X_LARGE": (4.0, 16, 16),
    "XX_LARGE": (8.0, 32, 16),
}


def info(scope: str, view: Any) -> SandboxInfo:
    """A devbox in our words."""
    created, launch = view.create_time_ms / 1000, view.launch_parameters
    seconds = launch.keep_alive_time_seconds
    return SandboxInfo(
        SandboxRef("runloop", scope, view.id, view.metadata.get(KEY)),
        status=_STATUS.get(view.status, "creating"),
        labels=dict(view.metadata),
        created_at=created,
        expires_at=created + seconds if seconds else None,
        resources=_granted(launch),
        image=view.snapshot_id or view.blueprint_id,
    )


def _granted(launch: Any) -> Resources:
    if launch.resource_size_request == "CUSTOM_SIZE":
        cpus, memory, disk = launch.custom_cpu_cores, launch.custom_gb_memory, launch.custom_disk_size
    else:
        cpus, memory, disk = _SIZES.get(launch.resource_size_request or "SMALL", (None, None, None))
    return Resources(cpus=cpus, memory_mb=1024 * memory if memory else None, disk_mb=1024 * disk if disk else None)


def fitted(spec: SandboxSpec) -> SandboxSpec:
    """Sizes as they are sold: 2 to 8 GiB of memory for each core.

    Raises:
        CapabilityError: No sale has as much of both.
    """
    asked = spec.resources
    if asked.cpus is None and asked.memory_mb is None and asked.disk_mb is None:
        return spec
    cpus, memory = asked.cpus or CPUS[0], asked.memory_mb or 1024
    if asked.cpus is None and asked.memory_mb is None:
        cpus, memory = 1.0, 2048  # what is given to who asks for nothing
    for n in CPUS:
        for gb in MEMORY_GB:
            if n >= cpus and 1024 * gb >= memory and 2 * n <= gb <= 8 * n:
                disk = None if asked.disk_mb is None else 2048 * math.ceil(asked.disk_mb / 2048)
                sizes = {"cpus": n, "memory_mb": 1024 * gb, "disk_mb": disk}
                return spec.model_copy(update={"resources": asked.model_copy(update=sizes)})
    raise CapabilityError(
        f"runloop sells 2 to 8 GiB of memory for each of at most 16 cores, so not {cpus:g} cores with {memory} MiB",
        provider="runloop",
        field="resources",
    )


def request(prepared: Prepared, spec: SandboxSpec, key: str, architecture: str, policy: str | None) -> dict[str, Any]:
    """The body of a create."""
    name = prepared.ref.removeprefix(BLUEPRINT)
    source = {"snapshot_id" if name == prepared.ref else "blueprint_id": name}
    sizes = spec.resources
    launch: dict[str, Any] = {
        "architecture": architecture,
        "keep_alive_time_seconds": math.ceil(spec.timeouts.effective_lifetime),
        "user_parameters": ROOT,
    }
    if sizes.cpus is not None and sizes.memory_mb is not None:
        launch["resource_size_request"] = "CUSTOM_SIZE"
        launch["custom_cpu_cores"] = sizes.cpus
        launch["custom_gb_memory"] = math.ceil(sizes.memory_mb / 1024)
        if sizes.disk_mb is not None:
            launch["custom_disk_size"] = 2 * math.ceil(sizes.disk_mb / 2048)
    if policy is not None:
        launch["network_policy_id"] = policy
    public = all(port.visibility == "public" for port in spec.all_ports)
    return {
        **source,
        "name": key,
        "metadata": {**spec.labels, KEY: key},
        "environment_variables": dict(spec.env),
        "launch_parameters": launch,
        "tunnel": {"auth_mode": "open" if public else "authenticated"},
    }


def labels_in(text: str | None) -> dict[str, str]:
    """The labels in the description of a network policy; none in that of somebody else."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
