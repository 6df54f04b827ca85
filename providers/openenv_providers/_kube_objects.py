"""What a sandbox is in a cluster: a Pod, with a Secret and a NetworkPolicy of the same name where they are needed."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv_sandbox.backend_kit import docker_config, unix_time
from openenv_sandbox.errors import CapabilityError
from openenv_sandbox.spec import Resources
from openenv_sandbox.values import KEY, SandboxInfo, SandboxRef, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openenv_sandbox.capabilities import Isolation
    from openenv_sandbox.spec import SandboxSpec
    from openenv_sandbox.values import Image, Prepared

CONTAINER = "env"
_GPU = "nvidia.com/gpu"
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IDS = re.compile(r"([0-9]+)(?::([0-9]+))?\Z")


@dataclass(frozen=True)
class Profile:
    """What the cluster wants of every Pod.

    Attributes:
        service_account: Runs as it; None for the namespace's default. Its token is never mounted.
        pull_secrets: Secrets that hold registries' logins.
        node_selector: Labels of the nodes that may be chosen.
        tolerations: As in a Pod.
        runtime_class: The RuntimeClass, such as one of gVisor's.
        gpu_label: The node label that holds the GPU's model; None when models cannot be asked for.
        strict: Always the restricted profile.
        isolation: What the runtime class puts between workload and node.
    """

    service_account: str | None = None
    pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    runtime_class: str | None = None
    gpu_label: str | None = None
    strict: bool = False
    isolation: Isolation = "container"


def object_name(key: str) -> str:
    """The name that all objects of one key have: keys are DNS-1123 labels."""
    return key


def ids(user: str | None) -> tuple[int, int | None] | None:
    """``uid[:gid]`` as numbers; None when it is a name or nothing."""
    match = _IDS.match(user or "")
    return (int(match[1]), int(match[2]) if match[2] else None) if match else None


def fit(spec: SandboxSpec, image: Image, profile: Profile, name: str) -> SandboxSpec:
    """What capabilities cannot express.

    Raises:
        CapabilityError: It cannot be.
    """
    if spec.user is not None and ids(spec.user) is None:
        raise CapabilityError(
            f"{name} cannot run a Pod as the user {spec.user!r}", field="user", provider=name, hint="give uid[:gid]"
        )
    if profile.strict or spec.hardening == "strict":
        user = spec.user or (image.config.user if image.config else None)
        numbers = ids(user)
        known = spec.user is not None or image.config is not None  # otherwise the node looks, and refuses
        if known and (numbers is None or numbers[0] == 0):
            raise CapabilityError(
                f"the restricted profile needs a numeric user that is not root; the image's is {user or 'root'}",
                field="hardening", provider=name, hint="set user=1000, or USER 1000 in the image",
            )  # fmt: skip
    if spec.resources.gpu and spec.resources.gpu[0] != "*" and profile.gpu_label is None:
        raise CapabilityError(
            "the cluster's label for GPU models is not known",
            field="resources.gpus", provider=name, hint="set the option gpu_label, or ask for '*:1'",
        )  # fmt: skip
    return spec


def metadata(spec: SandboxSpec, key: str) -> dict[str, Any]:
    """The same for all three objects."""
    return {"name": object_name(key), "labels": {**spec.labels, KEY: key}}


def secret(spec: SandboxSpec, prepared: Prepared, key: str) -> dict[str, Any] | None:
    """Secrets of the server and the login of the registry, None when there are none."""
    data = {name: _b64(value) for name, value in spec.plain_secrets().items()}
    kind = "Opaque"
    if spec.registry_auth is not None:
        kind = "kubernetes.io/dockerconfigjson"
        data[".dockerconfigjson"] = _b64(docker_config(prepared.ref, spec.registry_auth))
    if not data:
        return None
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata(spec, key),
        "type": kind, "immutable": True, "data": data,
    }  # fmt: skip


def network_policy(spec: SandboxSpec, key: str) -> dict[str, Any] | None:
    """What closes the workload's ways out, None when all are open."""
    if spec.network.mode == "full":
        return None
    blocks = [{"to": [{"ipBlock": {"cidr": cidr}}]} for cidr in spec.network.cidrs]
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(spec, key),
        "spec": {"podSelector": {"matchLabels": {KEY: key}}, "policyTypes": ["Egress"], "egress": blocks},
    }  # fmt: skip


def pod(spec: SandboxSpec, prepared: Prepared, key: str, profile: Profile) -> dict[str, Any]:
    """The Pod."""
    name = object_name(key)
    strict = profile.strict or spec.hardening == "strict"
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"] if strict else ["NET_RAW"]},
    }
    if strict:
        security["runAsNonRoot"] = True
    if (numbers := ids(spec.user)) is not None:
        security["runAsUser"] = numbers[0]
        if numbers[1] is not None:
            security["runAsGroup"] = numbers[1]
    sizes = _sizes(spec)
    container: dict[str, Any] = {
        "name": CONTAINER, "image": prepared.ref,
        "imagePullPolicy": "Always" if spec.pull == "always" else "IfNotPresent",
        "env": [{"name": n, "value": _literal(v)} for n, v in spec.env.items() if n not in spec.secrets]
        + [{"name": n, "valueFrom": {"secretKeyRef": {"name": name, "key": n}}} for n in spec.secrets],
        "ports": [{"containerPort": port.number} for port in spec.all_ports],
        "resources": {"requests": sizes, "limits": sizes},
        "securityContext": security,
    }  # fmt: skip
    if spec.command is not None:
        container["command"] = [_literal(word) for word in spec.command]
    if spec.workdir is not None:
        container["workingDir"] = spec.workdir
    pulls = [*profile.pull_secrets, *([name] if spec.registry_auth else [])]
    selector = dict(profile.node_selector)
    if spec.resources.gpu and spec.resources.gpu[0] != "*" and profile.gpu_label:
        selector[profile.gpu_label] = spec.resources.gpu[0]
    wanted = {
        "serviceAccountName": profile.service_account, "runtimeClassName": profile.runtime_class,
        "nodeSelector": selector, "tolerations": [dict(item) for item in profile.tolerations],
        "imagePullSecrets": [{"name": item} for item in pulls],
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(spec, key),
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            # Counted from when a node takes the Pod.
            "activeDeadlineSeconds": math.ceil(spec.timeouts.effective_lifetime),
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            **{name: value for name, value in wanted.items() if value},
        },
    }


def info(item: Mapping[str, Any], *, provider: str, scope: str, isolation: Isolation) -> SandboxInfo:
    """What a Pod, or a Secret or NetworkPolicy without one, tells."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    containers = spec.get("containers") or []
    started, seconds = unix_time(status.get("startTime")), spec.get("activeDeadlineSeconds")
    return SandboxInfo(
        ref=SandboxRef(provider, scope, meta["name"], (meta.get("labels") or {}).get(KEY)),
        status=_status(item) if containers else "failed",
        labels=dict(meta.get("labels") or {}),
        created_at=unix_time(meta.get("creationTimestamp")),
        expires_at=started + seconds if started is not None and seconds else None,
        resources=_granted(containers[0]) if containers else None,
        isolation=isolation,
        image=containers[0].get("image") if containers else None,
    )


def owner(pod: Mapping[str, Any]) -> dict[str, str]:
    """What makes the cluster remove an object with its Pod."""
    return {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def terminated(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How the container ended, None while it has not: ``exitCode``, ``reason``, ``message``."""
    status = item.get("status") or {}
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None:
            return dict(ended)
    if status.get("phase") in ("Succeeded", "Failed"):
        return {name: status[name] for name in ("reason", "message") if status.get(name)}
    return None


def why(ended: Mapping[str, Any]) -> str:
    """The reason of an end, where it says more than the code."""
    reason = ended.get("reason") or ""
    if reason in ("", "Completed", "Error"):
        return ""
    return f"{reason}: {ended['message']}" if ended.get("message") else str(reason)


def running(item: Mapping[str, Any]) -> bool:
    """Whether the container runs."""
    statuses = (item.get("status") or {}).get("containerStatuses") or []
    return any("running" in (container.get("state") or {}) for container in statuses)


def _status(item: Mapping[str, Any]) -> Status:
    phases: dict[str, Status] = {"Pending": "creating", "Running": "running", "Succeeded": "stopped"}
    return phases.get((item.get("status") or {}).get("phase", "Pending"), "failed")


def _sizes(spec: SandboxSpec) -> dict[str, str]:
    wanted = spec.resources
    sizes: dict[str, str] = {}
    if wanted.cpus is not None:
        sizes["cpu"] = f"{math.ceil(wanted.cpus * 1000)}m"
    if wanted.memory_mb is not None:
        sizes["memory"] = f"{wanted.memory_mb}Mi"
    if wanted.disk_mb is not None:
        sizes["ephemeral-storage"] = f"{wanted.disk_mb}Mi"
    if wanted.gpu is not None:
        sizes[_GPU] = str(wanted.gpu[1])
    return sizes


def _granted(container: Mapping[str, Any]) -> Resources | None:
    limits = (container.get("resources") or {}).get("limits") or {}
    sizes: dict[str, Any] = {}
    if "cpu" in limits:
        text = str(limits["cpu"])
        sizes["cpus"] = int(text[:-1]) / 1000 if text.endswith("m") else float(text)
    for ours, theirs in (("memory_mb", "memory"), ("disk_mb", "ephemeral-storage")):
        match = re.match(r"([0-9]+)([A-Za-z]*)\Z", str(limits.get(theirs, "")))
        if match and match[2] in _UNITS:
            sizes[ours] = int(match[1]) * _UNITS[match[2]] // 2**20 or None
    if _GPU in limits:
        sizes["gpus"] = f"*:{limits[_GPU]}"
    return Resources(**sizes) if sizes else None


def _literal(text: str) -> str:
    """Kept from the kubelet, which expands ``$(NAME)`` and reads ``$$`` as ``$``."""
    return text.replace("$", "$$")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def waiting(item: Mapping[str, Any]) -> tuple[str | None, str]:
    """Why the container does not run yet: its own reason, or the scheduler's."""
    status = item.get("status") or {}
    for container in status.get("containerStatuses") or []:
        state = (container.get("state") or {}).get("waiting")
        if state is not None:
            return state.get("reason"), str(state.get("message") or "")
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason"), str(condition.get("message") or "")
    return None, "no reason was given"
