"""All that is preview about Azure Container Apps Sandboxes: what its SDK is called, sends and answers, nowhere else.

Read from azure-containerapps-sandbox 0.1.0b4:

* The synchronous client is used. The other one sends by aiohttp, which repeats a PUT whose connection broke, and
  creating a sandbox is a PUT without a name: a lost reply would make two.
* The SDK repeats 403, 429 and 5xx for minutes; ``retry_total=0`` is the one switch that ends that.
* An exit code that is missing in the reply becomes 0 in the SDK; core's wrapper has its own.
* A sandbox from a memory snapshot takes no labels, so nothing would lead back to it: only disks are booted here.
"""

from __future__ import annotations

import math
import re
import threading
from typing import TYPE_CHECKING, Any

from openenv_providers._aca_values import Box, Disk, Login, Wish
from openenv_sandbox.lifecycle import CountedThreads, daemon_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openenv_sandbox.provider import Status
    from openenv_sandbox.spec import RegistryAuth

REQUESTS = 64
"""Requests at once; commands, which wait in the sandbox, are not among them."""
READ_S = 240.0
"""Longest silence of one request, in seconds: that of the vendor's own load balancers."""
METADATA = "169.254.169.254"
_STATUS: Mapping[str, Status] = {
    "creating": "creating",
    "running": "running",
    "resuming": "paused",
    "stopping": "paused",
    "stopped": "paused",
    "suspended": "paused",
    "idle": "paused",
    "deleting": "stopped",
    "failed": "failed",
}
_SUFFIX = {"": 1, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "k": 1e3, "m": 1e6, "g": 1e9}


def endpoint_for(region: str) -> str:
    """Where the data plane of a region answers."""
    return f"https://management.{region}.azuredevcompute.io"


def sizes(cpus: float | None, memory_mb: int | None, disk_mb: int | None) -> tuple[str, str, str | None]:
    """Cores, MiB and MiB as the service writes them, rounded up."""
    cpu = f"{math.ceil((cpus or 1.0) * 1000 - 1e-6)}m"
    return cpu, f"{memory_mb or 2048}Mi", None if disk_mb is None else f"{math.ceil(disk_mb / 1024)}Gi"


class Preview:
    """The SDK's client, made by the first call and used by one loop."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._threads = CountedThreads(REQUESTS)
        self._client: Any = None
        self._credential: Any = None
        self._making = threading.Lock()

    async def _call(self, fn: Callable[[Any], Any]) -> Any:
        return await self._threads.run(lambda: fn(self._open()))

    def _open(self) -> Any:
        with self._making:
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Any:
        import requests
        from azure.containerapps.sandbox import SandboxGroupClient
        from azure.core.pipeline.transport import RequestsTransport

        login = self._login
        session = requests.Session()
        session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=8 * REQUESTS))
        self._credential = _credential(login)
        return SandboxGroupClient(
            login.endpoint,
            self._credential,
            subscription_id=login.subscription,
            resource_group=login.resource_group,
            sandbox_group=login.group,
            audience=login.audience,
            transport=RequestsTransport(
                session=session, connection_timeout=15, read_timeout=READ_S, connection_verify=login.ca_file or True
            ),
            retry_total=0,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await self._threads.run(client.close)
        close = getattr(self._credential, "close", None)
        if close is not None:
            await self._threads.run(close)

    # ---------------------------------------------------------------------------------------------- sandboxes

    async def begin(self, wish: Wish) -> Callable[[], Any]:
        """Send the create request; what it returns waits until the sandbox runs, or raises, in seconds."""
        from azure.containerapps.sandbox import AddPortRequest, EgressHostRule, EgressPolicy, PortAuthConfig

        rules = [EgressHostRule(pattern=host, action="Deny") for host in wish.denied]
        rules += [EgressHostRule(pattern=host, action="Allow") for host in wish.hosts]
        policy = EgressPolicy(default_action="Deny" if wish.deny else "Allow", host_rules=rules)
        ports = [
            AddPortRequest(port=port, auth=PortAuthConfig(anonymous=True), ip_access_control=_sources(wish.sources))
            for port in wish.ports
        ]
        # The image's own command never runs by itself: whatever the service makes of an entrypoint alone.
        argv = list(wish.argv)
        poller = await self._call(
            lambda client: client.begin_create_sandbox(
                disk=wish.public_disk,
                disk_id=wish.disk_id,
                cpu=wish.cpu,
                memory=wish.memory,
                disk_size=wish.disk_size,
                auto_suspend_seconds=wish.suspend_s,
                auto_suspend_mode="Memory",
                labels=dict(wish.labels),
                environment=dict(wish.env) or None,
                egress_policy=policy,
                ports=ports or None,
                entrypoint=argv[:2],
                cmd=argv[2:],
                polling_timeout=math.ceil(wish.timeout_s),
                polling_interval=1,
            )
        )
        return lambda: daemon_call(lambda: poller.result().sandbox_id)

    async def set_life(self, id: str, suspend_s: int, delete_s: int) -> None:
        """Suspend after so many idle seconds, delete after so many more. Only an existing sandbox takes this."""
        from azure.containerapps.sandbox import AutoDeletePolicy, AutoSuspendPolicy, LifecyclePolicy

        policy = LifecyclePolicy(
            auto_suspend=AutoSuspendPolicy(enabled=True, interval=suspend_s, mode="Memory"),
            auto_delete=AutoDeletePolicy(enabled=True, delete_interval_seconds=delete_s),
        )
        await self._call(lambda client: client.get_sandbox_client(id).set_lifecycle_policy(policy))

    async def get(self, id: str) -> Box:
        """One sandbox."""
        return _box(await self._call(lambda client: client.get_sandbox(id)))

    async def sandboxes(self, labels: Mapping[str, str]) -> list[Box]:
        """All pages."""
        found = await self._call(lambda client: list(client.list_sandboxes(labels=dict(labels) or None)))
        return [_box(one) for one in found]

    async def delete(self, id: str) -> None:
        """Accepted, not yet done."""
        await self._call(lambda client: client.delete_sandbox(id))

    async def exec(self, id: str, command: str, folder: str | None) -> tuple[int, str, str]:
        """One command of the sandbox's shell. It holds its thread to the end, so it takes no place of a request."""
        done = await daemon_call(lambda: self._open().get_sandbox_client(id).exec(command, working_directory=folder))
        return int(done.exit_code), str(done.stdout), str(done.stderr)

    async def write(self, id: str, path: str, data: bytes) -> None:
        """A file that only its owner reads."""
        await self._call(lambda client: client.get_sandbox_client(id).write_file(path, data, mode="0600"))

    async def publish(self, id: str, port: int, sources: Sequence[str]) -> str | None:
        """Open a port to everybody from ``sources``; its address."""
        rules = _sources(sources)
        made = await self._call(
            lambda client: client.get_sandbox_client(id).add_port(port, anonymous=True, ip_access_control=rules)
        )
        return str(made.url) if made.url else None

    async def suspend(self, id: str) -> None:
        """Memory and disk are kept; returns once it stands."""
        await daemon_call(lambda: self._open().get_sandbox_client(id).begin_stop(polling_interval=1).result())

    async def wake(self, id: str) -> None:
        """Returns once it runs."""
        await daemon_call(lambda: self._open().get_sandbox_client(id).begin_resume(polling_interval=1).result())

    # -------------------------------------------------------------------------------------------------- disks

    async def commit(self, id: str, name: str) -> Disk:
        """The sandbox's disk as an image, still being made."""
        return _disk(await self._call(lambda client: client.get_sandbox_client(id).commit(name=name)))

    async def make_disk(self, base: str, name: str, login: RegistryAuth | None, identity: str | None) -> Disk:
        """A disk image from a registry's image, still being made."""
        from azure.containerapps.sandbox import RegistryCredentials

        given = RegistryCredentials(login.username, login.password.get_secret_value()) if login else None
        made = await self._call(
            lambda client: client.create_disk_image(
                base, name=name, registry_credentials=given, managed_identity_resource_id=identity
            )
        )
        return _disk(made)

    async def disk(self, id: str) -> Disk:
        """One private disk image."""
        return _disk(await self._call(lambda client: client.get_disk_image(id)))

    async def public_disk(self, name: str) -> Disk:
        """One of the service's own."""
        return _disk(await self._call(lambda client: client.get_public_disk_image(name)))

    async def disks(self) -> list[Disk]:
        """The private ones, all pages."""
        return [_disk(one) for one in await self._call(lambda client: list(client.list_disk_images()))]

    async def drop_disk(self, id: str) -> None:
        """Accepted, not yet done."""
        await self._call(lambda client: client.delete_disk_image(id))


def _credential(login: Login) -> Any:
    import time

    from azure.core.credentials import AccessToken

    if login.kind == "token":

        class _Given:
            def get_token(self, *scopes: str, **kw: Any) -> Any:
                # Asked for again every minute: whoever renews the variable is heard.
                return AccessToken(login.token(), int(time.time()) + 360)

        return _Given()
    import azure.identity as identity

    if login.kind == "managed-identity":
        return identity.ManagedIdentityCredential(client_id=login.client_id)
    return identity.DefaultAzureCredential(managed_identity_client_id=login.client_id)


def _sources(networks: Sequence[str]) -> Any:
    from azure.containerapps.sandbox import PortIpAccessControl, PortIpAccessControlRule

    if not networks:
        return None
    rule = PortIpAccessControlRule(name="openenv", action="Allow", priority=1, source_cidrs=list(networks))
    return PortIpAccessControl(default_action="Deny", rules=[rule])


def _box(raw: Any) -> Box:
    size, life, source = raw.resources, raw.lifecycle, raw.sources_ref
    disk = source.disk_image if source else None
    suspend, remove = (life.auto_suspend, life.auto_delete) if life else (None, None)
    return Box(
        id=raw.id,
        status=_STATUS.get((raw.state or "").lower(), "unknown"),
        labels=dict(raw.labels or {}),
        idle=bool(raw.state_details and raw.state_details.stopped_reason == "Idle"),
        restored=bool(source and source.snapshot),
        created_at=raw.created_at,
        cpus=_number(size.cpu, "m") if size else None,
        memory_mb=_mebi(size.memory) if size else None,
        disk_mb=_mebi(size.disk) if size else None,
        disk=(disk.id or disk.name) if disk else None,
        ports={port.port: port.url for port in raw.ports if port.auth and port.auth.anonymous},
        suspend_s=suspend.interval if suspend and suspend.enabled else None,
        delete_s=remove.delete_interval_seconds if remove and remove.enabled else None,
    )


def _disk(raw: Any) -> Disk:
    state = raw.status.state.lower() if raw.status else ""
    spec = getattr(raw, "image", None)
    return Disk(
        id=raw.id,
        name=getattr(raw, "labels", {}).get("name") or raw.name or "",
        ready=True if state in ("ready", "succeeded") else False if state == "failed" else None,
        message=(raw.status.message or "") if raw.status else "",
        base=spec.base if spec else "",
        entrypoint=tuple(spec.entrypoint or ()) if spec else (),
        cmd=tuple(spec.cmd or ()) if spec else (),
    )


def _number(text: str, milli: str) -> float | None:
    found = re.fullmatch(rf"([0-9.]+)({milli}?)", text or "")
    return float(found[1]) / (1000 if found[2] else 1) if found else None


def _mebi(text: str) -> int | None:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text or "")
    factor = _SUFFIX.get(found[2].lower()) if found else None
    return int(float(found[1]) * factor) >> 20 if found and factor else None
