"""Names that carry our labels, since islo stores none, and what islo tells in our words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from openenv_sandbox.backend_kit import labels_in, name_with, unix_time
from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import SandboxInfo, SandboxRef, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.spec import SandboxSpec

NAME = "islo"
LONGEST = 255
CPUS = tuple(float(n) for n in range(1, 9))
DISK_MB = tuple(1024 * n for n in range(1, 101))
MEMORY_MB = (256, 8192)
"""The least and the most; anything between is sold."""
_SNAPSHOT = re.compile(r"oe-snap-[0-9a-f]+-(?P<install>[a-z0-9]+)\Z")
_PROFILE = "oe-profile"
"""A mark in the name, no label of the sandbox."""
_STATUS: dict[str, Status] = {
    "running": "running",
    "pausing": "paused",
    "paused": "paused",
    "stopping": "stopped",
    "stopped": "stopped",
    "failed": "failed",
    "error": "failed",
}
_GONE = ("deleted", "deleting")


def name_of(key: str, labels: Mapping[str, str], *, profile: bool) -> str:
    """The name of a sandbox, which carries its labels and whether a gateway profile is made beside it.

    Raises:
        CapabilityError: The user's labels are too long for it.
    """
    marked = {**labels, _PROFILE: ""} if profile else labels
    return name_with(key, marked, longest=LONGEST, provider=NAME)


def labels_of(name: str) -> dict[str, str]:
    """The labels in a name; none when it is not ours."""
    return {label: text for label, text in labels_in(name).items() if label != _PROFILE}


def has_profile(name: str) -> bool:
    """Whether a gateway profile was made beside the sandbox of that name."""
    return _PROFILE in labels_in(name)


def snapshot_labels(name: str) -> dict[str, str] | None:
    """Whose a snapshot is; None for one that was not made here."""
    found = _SNAPSHOT.match(name)
    return {"oe-install": found["install"]} if found else None


def ref_of(scope: str, name: str) -> SandboxRef:
    """A sandbox is addressed by its name."""
    return SandboxRef(NAME, scope, name, labels_of(name).get("oe-key"))


def status_of(box: Any) -> Status | None:
    """In our words; None when it exists no more."""
    if box.deleted_at or box.status in _GONE:
        return None
    return _STATUS.get(box.status, "creating")


def info_of(scope: str, box: Any) -> SandboxInfo:
    """What islo tells about a sandbox."""
    created, sizes = unix_time(box.created_at), box.spec
    ends = box.lifecycle.delete_after if box.lifecycle is not None else None
    return SandboxInfo(
        ref_of(scope, box.name),
        status=status_of(box) or "stopped",
        labels=labels_of(box.name),
        created_at=created,
        expires_at=created + ends if created is not None and ends else None,
        resources=sizes and Resources(cpus=float(sizes.vcpus), memory_mb=sizes.memory_mb, disk_mb=1024 * sizes.disk_gb),
        isolation="vm",
        image=box.image,
    )


def orphan(scope: str, profile: str) -> SandboxInfo:
    """A gateway profile whose sandbox is gone, or never was: it is removed like one."""
    return SandboxInfo(ref_of(scope, profile), status="stopped", labels=labels_of(profile))


def fitted(spec: SandboxSpec) -> SandboxSpec:
    """Memory has bounds and no steps, which `Sizes` cannot say.

    Raises:
        CapabilityError: More than is sold, or labels that do not fit into a name.
    """
    wanted, (least, most) = spec.resources.memory_mb, MEMORY_MB
    if wanted is not None and wanted > most:
        raise CapabilityError(
            f"islo sells at most {most} MiB of memory, not {wanted}", provider=NAME, field="resources.memory_mb"
        )
    placeholder = {**spec.labels, "oe-run": "0" * 8, "oe-install": "0" * 16, "oe-expires": "0" * 10}
    name_of("oe-00000000-000000000000", placeholder, profile=True)
    if wanted is None or wanted >= least:
        return spec
    return spec.model_copy(update={"resources": spec.resources.model_copy(update={"memory_mb": least})})
