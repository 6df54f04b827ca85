"""Sandboxes of Azure Container Apps, as older code starts them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from openenv_adapters.containers._cloud import CloudContainer, refuse
from openenv_sandbox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.request import Which

_OWNER = "ACASandboxProvider"
_UNITS = {"": 1 / (1 << 20), "Ki": 1 / 1024, "Mi": 1.0, "Gi": 1024.0, "Ti": 1024.0 * 1024}


class ACASandboxProvider(CloudContainer):
    """The backend ``aca``, whose ports are public: `anonymous_port` accepts that.

    Args:
        subscription_id: Instead of AZURE_SUBSCRIPTION_ID.
        resource_group: Holds the sandbox group.
        sandbox_group: Must exist.
        region: Of the sandbox group.
        endpoint: Data plane instead of the region's.
        credential: ``default``, ``managed-identity`` or ``token``, not an object.
        cpu: Cores, ``1000m`` or ``1``.
        memory: ``2048Mi``, ``2Gi``.
        disk_size: Likewise.
        auto_suspend_seconds: Unused for so long, a sandbox is suspended. A living owner keeps it in use.
        auto_suspend_mode: Only the default.
        labels: Of the sandbox.
        egress_policy: Not an object of the SDK: see the hint.
        anonymous_port: Accept that anyone who knows the address reaches the server, which wants a token.
        image: A ref; None where `start_container` names it.
        env_vars: Environment of the server.
        cmd: Replaces the image's command.
        working_directory: Instead of the image's.
        surface_server_logs: Only the default.
        create_timeout: Longest time from the request to the sandbox, in seconds.
        polling_interval: The backend has its own.
        sdk_kwargs: Only the default.

    Raises:
        CapabilityError: An argument cannot be honoured; the hint names what to use.
        ConfigError: A size cannot be read.
    """

    backend: ClassVar[Which] = "aca"

    def __init__(
        self,
        *,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        sandbox_group: str | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        credential: Any = None,
        cpu: str = "1000m",
        memory: str = "2048Mi",
        disk_size: str | None = None,
        auto_suspend_seconds: int = 900,
        auto_suspend_mode: Literal["Memory", "Disk"] = "Memory",
        labels: Mapping[str, str] | None = None,
        egress_policy: Any = None,
        anonymous_port: Literal[True] | None = None,
        image: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        cmd: str | None = None,
        working_directory: str | None = None,
        surface_server_logs: bool = False,
        create_timeout: int = 300,
        polling_interval: int = 3,
        sdk_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if credential is not None and not isinstance(credential, str):
            raise refuse(_OWNER, "credential object", 'credential="managed-identity", or "token" and its variable')
        if auto_suspend_mode != "Memory":
            raise refuse(_OWNER, "auto_suspend_mode", "leave it out: the backend keeps the memory")
        if egress_policy is not None:
            raise refuse(_OWNER, "egress_policy", 'start_container(…, network="none"), or an allowlist of hosts')
        if surface_server_logs:
            raise refuse(_OWNER, "surface_server_logs", "the last lines are in the error when the server ends")
        if sdk_kwargs:
            raise refuse(_OWNER, "sdk_kwargs", "the options of aca: `openenv providers aca`")
        sizes = {"cpus": _cores(cpu), "memory_mb": _mib(memory), "disk_mb": _mib(disk_size) if disk_size else None}
        options = {
            "subscription_id": subscription_id,
            "resource_group": resource_group,
            "sandbox_group": sandbox_group,
            "region": region,
            "endpoint": endpoint,
            "credential": credential,
            "idle_s": auto_suspend_seconds,
        }
        super().__init__(
            image,
            options,
            env=env_vars,
            command=cmd,
            workdir=working_directory,
            labels=labels,
            exposure="public" if anonymous_port else None,
            resources={name: value for name, value in sizes.items() if value is not None},
            timeouts={"create": float(create_timeout)},
        )


def _cores(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    if match is None:
        raise ConfigError(f"{text!r} is no number of cores", hint="1000m or 1")
    return float(match[1]) / (1000 if match[2] else 1)


def _mib(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]i)?", text)
    if match is None:
        raise ConfigError(f"{text!r} is no size", hint="2048Mi or 2Gi")
    return round(int(match[1]) * _UNITS[match[2] or ""])
