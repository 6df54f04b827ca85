"""What is asked of Runloop about devboxes and what stands beside them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any

from openenv_providers._runloop_api import ENDED, Api, missing
from openenv_sandbox.backend_kit import undo
from openenv_sandbox.errors import (
    CapabilityError,
    CreateTimeout,
    ImageError,
    OpenEnvError,
    ProviderError,
    ProviderUnavailable,
    SandboxGone,
)
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import SandboxInfo, SandboxRef, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.spec import NetworkPolicy, SandboxSpec

KEY = "oe-key"
BLUEPRINT = "blueprint:"
"""Before the id of a blueprint in `Prepared.ref`, which else is a snapshot's: their ids tell nothing."""

# In the order of a devbox's life, and "running" again, so that none moves past the question.
ASKED = ("scheduled", "queued", "provisioning", "initializing", "running", "suspending", "suspended", "resuming")
TAKE_S = 300.0
BOOTING = ("scheduled", "queued", "provisioning", "initializing")
CPUS = (0.5, 1.0, *(float(n) for n in range(2, 17, 2)))
MEMORY_GB = (1, *range(2, 65, 2))
DISK_GB = tuple(range(2, 65, 2))
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
_PAGE = 1000


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


class Devboxes:
    """The devboxes of one account."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def ref(self, view: Any) -> SandboxRef:
        """The name of a devbox."""
        return info(self.api.scope, view).ref

    async def create(self, prepared: Prepared, spec: SandboxSpec, key: str, architecture: str) -> Any:
        """A devbox that runs. What is half made is removed; after a lost reply nobody knows what there is."""
        policy = await self._policy(spec.network, key)
        body = request(prepared, spec, key, architecture, policy)
        try:
            view = await self.api.call(
                "creating a devbox",
                lambda client: client.devboxes.create(**body, idempotency_key=key),
                started=True,
            )
        except OpenEnvError as error:
            if policy is not None and error.outcome == "failed":
                with contextlib.suppress(OpenEnvError):  # the first error says more
                    await self._drop_policy(policy)
            if isinstance(error, SandboxGone):
                raise ImageError(
                    f"{error.message}: was it removed?", provider="runloop", hint="launch again"
                ) from error
            raise
        ref = self.ref(view)
        try:
            return await asyncio.wait_for(self._running(view, ref), spec.timeouts.create)
        except asyncio.TimeoutError as error:
            late = CreateTimeout(f"the devbox did not run within {spec.timeouts.create:g} s", ref=ref)
            await undo(self.delete(ref), late)
            raise late from error
        except BaseException as error:
            await undo(self.delete(ref), error)
            raise

    async def _running(self, view: Any, ref: SandboxRef) -> Any:
        if view.status != "running":
            view = await self._settled(ref)
        if view.status != "running":
            told = [change.failure_reason for change in view.state_transitions if change.failure_reason]
            why = (told or [view.failure_reason or view.shutdown_reason or "no reason given"])[-1]
            raise ProviderError(f"the devbox did not boot: {view.status}, {why}", ref=ref, retryable=True)
        return view

    async def _settled(self, ref: SandboxRef) -> Any:
        """It, when it boots no more."""
        from runloop_api_client.types import DevboxView

        return await self.api.reached(f"/v1/devboxes/{ref.id}", ("running", "suspended", *ENDED), DevboxView, ref)

    async def taken(self, ref: SandboxRef) -> Any:
        """A devbox of another process, once it takes commands: after a lost reply it may still boot.

        Raises:
            SandboxGone: It does not exist, or has ended.
            ProviderUnavailable: It boots for too long.
        """
        view = await self.view(ref)
        if view.status not in BOOTING:
            return view
        try:
            await asyncio.wait_for(self._settled(ref), TAKE_S)
        except asyncio.TimeoutError as error:
            late = f"the devbox still boots after {TAKE_S:g} s"
            raise ProviderUnavailable(late, ref=ref, retryable=True) from error
        return await self.view(ref)

    async def view(self, ref: SandboxRef) -> Any:
        """A devbox as it is now; one that has ended is gone.

        Raises:
            SandboxGone: It does not exist, or has ended.
        """
        view = await self._look(ref)
        if view.status in ENDED:
            raise SandboxGone(
                f"the devbox has ended: {view.shutdown_reason or view.failure_reason or 'shutdown'}", ref=ref
            )
        return view

    async def _look(self, ref: SandboxRef) -> Any:
        return await self.api.call("looking at the devbox", lambda client: client.devboxes.retrieve(ref.id), ref=ref)

    async def gone_or(self, error: OpenEnvError, ref: SandboxRef) -> OpenEnvError:
        """``error``, or that the devbox is gone, where the service refused for that reason.

        Its words for it are not documented, so the devbox is looked at.
        """
        if isinstance(error, SandboxGone) or type(error) is not ProviderError or error.outcome != "failed":
            return error
        try:
            await self.view(ref)
        except SandboxGone as gone:
            return gone
        except OpenEnvError:
            return error
        return error

    async def living(self, labels: Mapping[str, str]) -> list[Any]:
        """Every devbox with these labels that has not ended. The service filters by status only."""
        found: dict[str, Any] = {}
        for status in (*ASKED, "running"):
            for view in await self.api.rows("listing devboxes", _page(status)):
                if view.status not in ENDED and all(view.metadata.get(name) == text for name, text in labels.items()):
                    found[view.id] = view
        return list(found.values())

    async def delete(self, ref: SandboxRef) -> None:
        """Shut it down and remove its network policy. The record of it stays with the vendor for good."""
        view = None
        with missing():
            view = await self._look(ref)
            if view.status != "shutdown":
                await self.api.call(
                    "shutting the devbox down",
                    lambda client: client.devboxes.shutdown(ref.id, force="true"),
                    ref=ref,
                    started=True,
                )
        key = ref.key or (view.metadata.get(KEY) if view is not None else None)
        if key is not None and (view is None or view.launch_parameters.network_policy_id):
            listing = "looking for its network policy"
            for policy in await self.api.rows(listing, lambda c: c.network_policies.list(name=key, limit=_PAGE)):
                if policy.name == key:
                    await self._drop_policy(policy.id)

    async def _policy(self, network: NetworkPolicy, key: str) -> str | None:
        """The id of a policy made for one devbox and named like it; None where it needs none."""
        if network.mode == "full":
            return None
        made = await self.api.call(
            "making a network policy",
            lambda client: client.network_policies.create(
                name=key,
                allow_all=False,
                allowed_hostnames=list(network.hosts),
                allowed_cidrs=[{"cidr": cidr} for cidr in network.cidrs],
            ),
        )
        return str(made.id)

    async def _drop_policy(self, id: str) -> None:
        with missing():
            await self.api.call("removing its network policy", lambda client: client.network_policies.delete(id))


def _page(status: str) -> Any:
    return lambda client: client.devboxes.list(status=status, limit=_PAGE, include_total_count=False)
