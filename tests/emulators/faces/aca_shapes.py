"""What bodies of the data plane look like: the SDK's own models where it has them, every field and type otherwise.

UNVERIFIED, because the SDK only sends and reads: which error code goes with which refusal, and that unknown fields are
refused at all. A strict answer to what the SDK never sends cannot make a wrong provider pass.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from azure.containerapps.sandbox import EgressPolicy, LifecyclePolicy, PortIpAccessControl
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.emulators.engine import Box

TEXT, TEXTS, LABELS = "text", "texts", "labels"
SUSPEND = {"enabled": bool, "interval": int, "mode": ("Memory", "Disk")}
DELETE = {"enabled": bool, "deleteIntervalInSeconds": int}
EGRESS: dict[str, Any] = {
    "defaultAction": ("Allow", "Deny"),
    "hostRules": [{"pattern": TEXT, "action": ("Allow", "Deny")}],
    "rules": [dict],
    "trafficInspection": ("Legacy", "Full", "Partial", "None"),
}
PORT: dict[str, Any] = {
    "port": int,
    "auth": {"anonymous": bool, "entraId": {"enabled": bool, "emails": TEXTS}},
    "protocol": ("Http", "Http2"),
    "activationMode": ("Manual", "OnDemand"),
    "ipAccessControl": {
        "defaultAction": ("Allow", "Deny"),
        "rules": [{"name": TEXT, "action": ("Allow", "Deny"), "priority": int, "sourceCidrs": TEXTS}],
    },
}
SANDBOX: dict[str, Any] = {
    "sourcesRef": {"diskImage": {"id": TEXT, "name": TEXT, "isPublic": bool}, "snapshot": {"id": TEXT}},
    "resources": {"cpu": TEXT, "memory": TEXT, "disk": TEXT},
    "lifecycle": {"autoSuspendPolicy": SUSPEND, "autoDeletePolicy": DELETE},
    "labels": LABELS,
    "environment": LABELS,
    "ports": [PORT],
    "egressPolicy": EGRESS,
    "entrypoint": TEXTS,
    "cmd": TEXTS,
}
DISK: dict[str, Any] = {
    "image": {"base": TEXT, "entrypoint": TEXTS, "cmd": TEXTS},
    "labels": LABELS,
    "registryCredentials": {"username": TEXT, "token": TEXT},
    "managedIdentityResourceId": TEXT,
}
LIFE: dict[str, Any] = {"autoSuspendPolicy": SUSPEND, "autoDeletePolicy": DELETE}
EXEC = {"command": TEXT, "workingDirectory": TEXT}
NAMED = {"labels": LABELS}


class Wrong(Exception):
    """The body is not one of the service's."""


class Refused(Exception):
    """An answer in the service's error shape."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Azure's error body."""
    return JSONResponse({"error": {"code": code, "message": message}}, status, dict(headers or {}))


def check(value: Any, shape: Any, where: str = "body") -> None:
    """Refuse unknown fields and wrong types."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise Wrong(f"{where} must be an object")
        for name, inner in value.items():
            if name not in shape:
                raise Wrong(f"{where}.{name} is not known")
            check(inner, shape[name], f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise Wrong(f"{where} must be a list")
        for inner in value:
            check(inner, shape[0], where)
    elif isinstance(shape, tuple):
        if value not in shape:
            raise Wrong(f"{where} must be one of {', '.join(shape)}")
    else:
        _leaf(value, shape, where)


def _leaf(value: Any, shape: Any, where: str) -> None:
    fits = {
        TEXT: isinstance(value, str),
        TEXTS: isinstance(value, list) and all(isinstance(item, str) for item in value),
        LABELS: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    }
    if isinstance(shape, str):
        if not fits[shape]:
            raise Wrong(f"{where} must be {shape}")
    elif type(value) is not shape:
        raise Wrong(f"{where} must be {shape.__name__}")


def check_sandbox(body: Any) -> None:
    """A create request: fields, the SDK's models, the sizes that are sold."""
    check(body, SANDBOX)
    source = body.get("sourcesRef", {})
    if len(source) != 1 or "snapshot" in source:
        raise Wrong("sourcesRef must name one diskImage here")
    for model, part in ((EgressPolicy, body.get("egressPolicy")), (LifecyclePolicy, body.get("lifecycle"))):
        if part and model._from_dict(part)._to_dict() != part:
            raise Wrong(f"{model.__name__} has another shape")
    check_size(body.get("resources", {}))
    if "autoSuspendPolicy" not in body.get("lifecycle", {}):
        raise Wrong("lifecycle.autoSuspendPolicy is missing")
    for port in body.get("ports", []):
        check_port(port)


def check_port(port: dict[str, Any]) -> None:
    """A port, with the SDK's own rules for who may come."""
    check(port, PORT)
    if not 0 < port.get("port", 0) < 65536:
        raise Wrong("port must be 1 to 65535")
    if "ipAccessControl" in port:
        try:
            PortIpAccessControl._from_dict(port["ipAccessControl"]).validate()
        except ValueError as error:
            raise Wrong(str(error)) from None


def check_size(resources: Mapping[str, str]) -> None:
    """UNVERIFIED bounds: at most 16 cores, and 2 GiB for each."""
    cpu, memory, disk = resources.get("cpu", "1000m"), resources.get("memory", "2048Mi"), resources.get("disk", "1Gi")
    if not re.fullmatch(r"[1-9][0-9]*m", cpu) or not re.fullmatch(r"[1-9][0-9]*Mi", memory):
        raise Wrong("resources are written like 1000m and 2048Mi")
    if not re.fullmatch(r"[1-9][0-9]*Gi", disk):
        raise Wrong("resources.disk is written like 20Gi")
    if int(cpu[:-1]) > 16000 or int(memory[:-2]) * 1000 > int(cpu[:-1]) * 2048:
        raise Wrong("resources: at most 16000m, and 2048Mi for each 1000m")


def lets_in(port: Mapping[str, Any], address: str) -> bool:
    """Whether the port's source rules admit a client."""
    control = port.get("ipAccessControl")
    if control is None:
        return True
    for rule in sorted(control["rules"], key=lambda rule: rule["priority"]):
        if any(ipaddress.ip_address(address) in ipaddress.ip_network(net) for net in rule["sourceCidrs"]):
            return bool(rule["action"] == "Allow")
    return bool(control["defaultAction"] == "Allow")


def shown(box: Box) -> dict[str, Any]:
    """A sandbox as GET answers it."""
    body = box.data["body"]
    state = {"running": "Running", "paused": "Stopped", "stopped": "Failed"}[box.state]
    details = {"stoppedReason": box.data.get("reason", "Idle"), "stoppedAt": stamp(box.used_at)}
    return {
        "id": box.id,
        "state": state,
        "stateDetails": details if state == "Stopped" else None,
        "labels": box.labels,
        "environment": body.get("environment", {}),
        "resources": body.get("resources"),
        "lifecycle": box.data["life"],
        "egressPolicy": body.get("egressPolicy"),
        "sourcesRef": body["sourcesRef"],
        "entrypoint": body.get("entrypoint"),
        "ports": list(box.data["ports"].values()),
        "createdAt": stamp(box.created_at),
    }


def stamp(seconds: float) -> str:
    """Seven digits of a second, as .NET writes them."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")
