"""What an API server refuses: field names and types by the published schemas, and the rules that those do not hold.

`kubernetes-validate` knows every field of 1.37 and its type. Names, labels, quantities, ports and enumerations are
rules of the server's own code; those that a Pod, Secret or NetworkPolicy can break are here.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import ipaddress
import re
from functools import cache
from typing import Any

VERSION = "1.37.0"
LABEL_DNS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
QUALIFIED = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)\Z")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?\Z")
QUANTITY = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|e[0-9]+)?\Z")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}\Z")
ENUMS = {
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "dnsPolicy": {"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
}
NATIVE = {"cpu", "memory", "ephemeral-storage"}


class Invalid(Exception):
    """422: the causes, as ``field: message``."""

    def __init__(self, causes: list[str]) -> None:
        super().__init__("; ".join(causes))
        self.causes = causes


class Undecodable(Exception):
    """400: a value of the wrong type."""


@cache
def _schema(kind: str, api: str) -> Any:
    from referencing import Registry, Resource

    jsonschema: Any = importlib.import_module("jsonschema")
    utils: Any = importlib.import_module("kubernetes_validate.utils")

    folder = f"kubernetes-json-schema/v{VERSION}-local-strict"
    schema = utils.schema_contents(f"{folder}/{kind.lower()}-{api}.json", VERSION)
    definitions = utils.schema_contents(f"{folder}/_definitions.json", VERSION)
    registry: Any = Resource.from_contents(definitions) @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def unknown_fields(body: dict[str, Any]) -> list[str]:
    """Fields that the server does not know, dropped from ``body``.

    Raises:
        Undecodable: A value of the wrong type.
        Invalid: A field that must be there is not.
    """
    found: list[str] = []
    for _ in range(50):
        group, slash, _ = body["apiVersion"].rpartition("/")
        api = f"{group.partition('.')[0]}-v1" if slash else "v1"
        errors = list(_schema(body["kind"], api).iter_errors(body))
        if not errors:
            return found
        for error in errors:
            path = ".".join(map(str, error.absolute_path))
            if error.validator == "additionalProperties":
                known = error.schema.get("properties", {})
                for name in [name for name in error.instance if name not in known]:
                    found.append(f"{path}.{name}".lstrip("."))
                    del error.instance[name]
            elif error.validator == "required":
                raise Invalid([f"{path}: Required value ({error.message})"])
            else:
                raise Undecodable(f"json: cannot unmarshal {path}: {error.message}")
    raise AssertionError("a schema that never ends")


def check(body: dict[str, Any]) -> None:
    """The server's own rules.

    Raises:
        Invalid: With every cause.
    """
    causes: list[str] = []
    _meta(body["metadata"], causes)
    {"Pod": _pod, "Secret": _secret, "NetworkPolicy": _policy}[body["kind"]](body, causes)
    if causes:
        raise Invalid(causes)


def _meta(meta: dict[str, Any], causes: list[str]) -> None:
    if not SUBDOMAIN.match(meta.get("name", "")):
        causes.append(f"metadata.name: Invalid value: {meta.get('name')!r}: a lowercase RFC 1123 subdomain")
    labels("metadata.labels", meta.get("labels") or {}, causes)
    owners = meta.get("ownerReferences") or []
    if not all(owner.get(name) for owner in owners for name in ("apiVersion", "kind", "name", "uid")):
        causes.append("metadata.ownerReferences: apiVersion, kind, name and uid must not be empty")


def labels(where: str, pairs: dict[str, str], causes: list[str]) -> None:
    """Keys and values of labels."""
    for name, value in pairs.items():
        prefix, _, plain = name.rpartition("/")
        if not QUALIFIED.match(plain) or (prefix and not SUBDOMAIN.match(prefix)):
            causes.append(f"{where}: Invalid value: {name!r}: name part must consist of alphanumeric characters")
        if not VALUE.match(value):
            causes.append(f"{where}: Invalid value: {value!r}: a valid label")


def _pod(body: dict[str, Any], causes: list[str]) -> None:
    spec = body["spec"]
    if not spec["containers"]:
        causes.append("spec.containers: Required value")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        causes.append("spec.activeDeadlineSeconds: Invalid value: must be between 1 and 2147483647, inclusive")
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        causes.append("spec.terminationGracePeriodSeconds: Invalid value: must be greater than or equal to 0")
    _enums("spec", spec, causes)
    labels("spec.nodeSelector", spec.get("nodeSelector") or {}, causes)
    wrong = [name for name in ("serviceAccountName", "runtimeClassName") if not SUBDOMAIN.match(spec.get(name, "x"))]
    causes += [f"spec.{name}: Invalid value: {spec[name]!r}" for name in wrong]
    names: set[str] = set()
    for number, container in enumerate(spec["containers"]):
        _container(f"spec.containers[{number}]", container, names, causes)


def _container(where: str, container: dict[str, Any], names: set[str], causes: list[str]) -> None:
    name = container["name"]
    if not LABEL_DNS.match(name):
        causes.append(f"{where}.name: Invalid value: {name!r}: a lowercase RFC 1123 label")
    if name in names:
        causes.append(f"{where}.name: Duplicate value: {name!r}")
    names.add(name)
    image = container.get("image", "")
    if not image or image.strip() != image:
        causes.append(f"{where}.image: Required value")
    _enums(where, container, causes)
    wrong = [p["containerPort"] for p in container.get("ports") or [] if not 1 <= p["containerPort"] <= 65535]
    causes += [f"{where}.ports: Invalid value: {port}: between 1 and 65535, inclusive" for port in wrong]
    for item in container.get("env") or []:
        if not ENV_NAME.match(item["name"]):
            causes.append(f"{where}.env: Invalid value: {item['name']!r}")
        if item.get("value") and item.get("valueFrom"):
            causes.append(f"{where}.env: may not be specified when `value` is not empty")
    security = container.get("securityContext") or {}
    if security.get("runAsUser") is not None and security["runAsUser"] < 0:
        causes.append(f"{where}.securityContext.runAsUser: Invalid value")
    _sizes(where, container.get("resources") or {}, causes)


def _sizes(where: str, resources: dict[str, Any], causes: list[str]) -> None:
    for kind in ("requests", "limits"):
        for name, text in (resources.get(kind) or {}).items():
            if not QUANTITY.match(str(text)):
                causes.append(f"{where}.resources.{kind}.{name}: Invalid value: {text!r}: quantities must match")
            elif name not in NATIVE and not name.startswith("hugepages-"):
                if "/" not in name:
                    causes.append(f"{where}.resources.{kind}: Invalid value: {name!r}: a standard resource")
                elif not str(text).isdigit():
                    causes.append(f"{where}.resources.{kind}.{name}: Invalid value: {text!r}: must be an integer")
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    wrong = [name for name in requests if name not in NATIVE and requests[name] != limits.get(name)]
    causes += [f"{where}.resources.limits.{name}: must be equal for non overcommitable resources" for name in wrong]


def _enums(where: str, item: dict[str, Any], causes: list[str]) -> None:
    for field, known in ENUMS.items():
        if field in item and item[field] not in known:
            causes.append(f"{where}.{field}: Unsupported value: {item[field]!r}: supported values: {sorted(known)}")


def _secret(body: dict[str, Any], causes: list[str]) -> None:
    data = body.get("data") or {}
    for name, value in data.items():
        if not SECRET_KEY.match(name):
            causes.append(f"data[{name}]: Invalid value")
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Undecodable(f"illegal base64 data in data.{name}") from None
    if body.get("type") == "kubernetes.io/dockerconfigjson" and ".dockerconfigjson" not in data:
        causes.append("data[.dockerconfigjson]: Required value")


def _policy(body: dict[str, Any], causes: list[str]) -> None:
    spec = body["spec"]
    labels("spec.podSelector.matchLabels", spec["podSelector"].get("matchLabels") or {}, causes)
    wrong = [kind for kind in spec.get("policyTypes") or [] if kind not in ("Ingress", "Egress")]
    causes += [f"spec.policyTypes: Unsupported value: {kind!r}" for kind in wrong]
    for rule in spec.get("egress") or []:
        for peer in rule.get("to") or []:
            cidr = (peer.get("ipBlock") or {}).get("cidr", "")
            try:
                if str(ipaddress.ip_network(cidr)) != cidr:
                    raise ValueError(cidr)
            except ValueError:
                causes.append(f"spec.egress.to.ipBlock.cidr: Invalid value: {cidr!r}")


def check_update(old: dict[str, Any], new: dict[str, Any]) -> None:
    """What may change of an object.

    Raises:
        Invalid: Something else was changed.
    """
    check(new)
    if old["kind"] == "Secret" and old.get("immutable") and new.get("data") != old.get("data"):
        raise Invalid(["data: Forbidden: field is immutable when `immutable` is set"])
    if old["kind"] != "Pod":
        return
    before, after = dict(old["spec"]), dict(new["spec"])
    was, now = before.pop("activeDeadlineSeconds", None), after.pop("activeDeadlineSeconds", None)
    if before != after:
        raise Invalid(["spec: Forbidden: pod updates may not change fields other than `spec.activeDeadlineSeconds`"])
    if was is not None and (now is None or now > was):
        raise Invalid(["spec.activeDeadlineSeconds: Invalid value: must be less than or equal to previous value"])
