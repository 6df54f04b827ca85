"""A spec as the arguments of a docker create, and what docker says about a container as ours."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.provider import SandboxInfo, SandboxRef, Status
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openenv_sandbox.capabilities import Isolation
    from openenv_sandbox.provider import Prepared
    from openenv_sandbox.spec import SandboxSpec

_PIDS, _SHM = 4096, 1 << 30
_STATUS: Mapping[str, Status] = {
    "created": "creating",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
    "removing": "stopped",
    "exited": "stopped",
    "dead": "failed",
}


def gpu_count(spec: SandboxSpec) -> int | None:
    """How many GPUs are asked for.

    Raises:
        CapabilityError: A model is named: docker hands out devices, it does not choose models.
    """
    if spec.resources.gpu is None:
        return None
    model, count = spec.resources.gpu
    if model not in ("*", "any", "gpu", "nvidia"):
        raise CapabilityError(
            f"docker cannot choose the GPU model {model!r}: it hands out whatever this machine has",
            field="resources.gpus",
            provider="docker",
            hint=f'write gpus="*:{count}"',
        )
    return count


def create_arguments(api: Any, prepared: Prepared, spec: SandboxSpec, key: str, options: Any) -> dict[str, Any]:
    """Keyword arguments of ``create_container``.

    Raises:
        CapabilityError: A GPU model is named: docker hands out devices, it does not choose models.
    """
    strict = spec.hardening == "strict"
    size = spec.resources
    host: dict[str, Any] = {
        "init": True,
        "pids_limit": 512 if strict else _PIDS,
        "shm_size": _SHM,
        "security_opt": ["no-new-privileges"],
        "cap_drop": ["ALL"] if strict else ["NET_RAW"],
    }
    if strict:
        host |= {"read_only": True, "tmpfs": dict.fromkeys(("/tmp", "/var/tmp", "/run"), "")}
    if size.cpus is not None:
        host["nano_cpus"] = int(size.cpus * 1e9)
    if size.memory_mb is not None:
        host["mem_limit"] = host["memswap_limit"] = size.memory_mb << 20
    if (count := gpu_count(spec)) is not None:
        host["device_requests"] = [{"Driver": "", "Count": count, "Capabilities": [["gpu"]]}]
    if options.runtime is not None:
        host["runtime"] = options.runtime
    ports: list[int] = []
    if spec.network.mode == "none":
        host["network_mode"] = "none"
    else:
        ports = [port.number for port in spec.all_ports]
        chosen = {spec.port: options.host_port}
        host["port_bindings"] = {f"{port}/tcp": ("127.0.0.1", chosen.get(port)) for port in ports}
    arguments: dict[str, Any] = {
        "image": prepared.ref,
        "name": key,
        "labels": {**spec.labels, KEY: key},
        "environment": {**spec.env, **spec.plain_secrets()},
        "ports": ports,
        "host_config": api.create_host_config(**host),
        "user": spec.user,
        "working_dir": spec.workdir,
    }
    if spec.command is not None:
        arguments["entrypoint"] = list(spec.command)  # a given entrypoint clears the image's command
    return arguments


def _key(labels: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The key of one of ours. Its label alone proves nothing: an image committed from a sandbox hands it on."""
    key = labels.get(KEY)
    return key if key and f"/{key}" in names else None


def info(scope: str, inspected: Mapping[str, Any], isolation: Isolation) -> SandboxInfo:
    """From ``inspect_container``."""
    config, host = inspected["Config"], inspected.get("HostConfig") or {}
    labels = config.get("Labels") or {}
    ref = SandboxRef("docker", scope, str(inspected["Id"]), _key(labels, [str(inspected.get("Name"))]))
    state = inspected.get("State") or {}
    cpus, memory = host.get("NanoCpus") or 0, host.get("Memory") or 0
    expires = labels.get("oe-expires", "")
    return SandboxInfo(
        ref=ref,
        status=_STATUS.get(str(state.get("Status")), "unknown"),
        labels=labels,
        created_at=_time(inspected.get("Created")),
        expires_at=float(expires) if expires.isdigit() else None,
        resources=Resources(cpus=cpus / 1e9 if cpus else None, memory_mb=(memory >> 20) or None),
        isolation=isolation,
        image=config.get("Image"),
    )


def listed(scope: str, row: Mapping[str, Any], isolation: Isolation) -> SandboxInfo:
    """From one row of ``containers``."""
    labels = row.get("Labels") or {}
    return SandboxInfo(
        ref=SandboxRef("docker", scope, str(row["Id"]), _key(labels, row.get("Names") or ())),
        status=_STATUS.get(str(row.get("State")), "unknown"),
        labels=labels,
        created_at=float(row["Created"]) if row.get("Created") else None,
        isolation=isolation,
        image=row.get("Image"),
    )


def _time(text: Any) -> float | None:
    """Docker writes nanoseconds, which Python 3.10 does not read."""
    try:
        return datetime.fromisoformat(f"{str(text)[:19]}+00:00").timestamp()
    except ValueError:
        return None
