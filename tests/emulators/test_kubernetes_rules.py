"""The emulated API server is as strict as a real one where it matters: each rule refuses what breaks it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")

from tests.emulators.faces import kube_rules
from tests.emulators.faces.kube_pods import expand
from tests.emulators.faces.kube_store import Problem, Store, selects

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "oe-1", "labels": {"oe-key": "oe-1"}},
    "spec": {
        "containers": [{"name": "env", "image": "light:1", "resources": {"limits": {"cpu": "500m"}}}],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 60,
    },
}


def pod(path: str, value: Any) -> dict[str, Any]:
    """The Pod with one value changed."""
    body = copy.deepcopy(POD)
    at: Any = body
    *way, last = path.split("/")
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[last] = value
    return body


def test_a_good_pod() -> None:
    body = copy.deepcopy(POD)
    assert kube_rules.unknown_fields(body) == []
    kube_rules.check(body)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata/name", "A_b"),
        ("metadata/name", "-a"),
        ("metadata/labels", {"oe-key": "x y/z"}),
        ("metadata/labels", {"oe-key": "x" * 64}),
        ("metadata/labels", {"a b": "x"}),
        ("metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "oe-1", "uid": ""}]),
        ("spec/containers", []),
        ("spec/restartPolicy", "Nope"),
        ("spec/activeDeadlineSeconds", 0),
        ("spec/nodeSelector", {"a": "b c"}),
        ("spec/serviceAccountName", "No Body"),
        ("spec/containers/0/name", "Env"),
        ("spec/containers/0/image", ""),
        ("spec/containers/0/ports", [{"containerPort": 70000}]),
        ("spec/containers/0/imagePullPolicy", "Sometimes"),
        ("spec/containers/0/env", [{"name": "a b", "value": "c"}]),
        ("spec/containers/0/resources", {"limits": {"cpu": "lots"}}),
        ("spec/containers/0/resources", {"limits": {"gpu": "1"}}),
        ("spec/containers/0/resources", {"requests": {"nvidia.com/gpu": "1"}}),
        ("spec/containers/0/securityContext", {"runAsUser": -1}),
    ],
)
def test_a_bad_value(path: str, value: Any) -> None:
    body = pod(path, value)
    assert kube_rules.unknown_fields(body) == []
    with pytest.raises(kube_rules.Invalid):
        kube_rules.check(body)


@pytest.mark.parametrize(
    "path", ["metadata/nmae", "spec/containerz", "spec/containers/0/comand", "spec/containers/0/resources/cpus"]
)
def test_an_unknown_field(path: str) -> None:
    body = pod(path, "x")
    assert kube_rules.unknown_fields(body) == [path.replace("/", ".")]
    assert kube_rules.unknown_fields(body) == [], "it is dropped"


def test_a_wrong_type() -> None:
    with pytest.raises(kube_rules.Undecodable):
        kube_rules.unknown_fields(pod("spec/activeDeadlineSeconds", "60"))
    with pytest.raises(kube_rules.Invalid, match="Required"):
        kube_rules.unknown_fields(pod("spec", {}))


def test_only_the_deadline_of_a_pod_changes_and_only_downwards() -> None:
    kube_rules.check_update(POD, pod("spec/activeDeadlineSeconds", 59))
    for changed in (
        pod("spec/activeDeadlineSeconds", 61),
        pod("spec/activeDeadlineSeconds", None),
        pod("spec/containers/0/image", "other:1"),
    ):
        with pytest.raises(kube_rules.Invalid):
            kube_rules.check_update(POD, changed)


def secret(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "oe-1"}, "type": "Opaque", "data": data}


def test_secrets() -> None:
    kube_rules.check(secret(A="YQ=="))
    with pytest.raises(kube_rules.Undecodable, match="base64"):
        kube_rules.check(secret(A="plain text"))
    with pytest.raises(kube_rules.Invalid):
        kube_rules.check({**secret(A="YQ=="), "type": "kubernetes.io/dockerconfigjson"})
    fixed = {**secret(A="YQ=="), "immutable": True}
    with pytest.raises(kube_rules.Invalid, match="immutable"):
        kube_rules.check_update(fixed, {**fixed, "data": {"A": "Yg=="}})


@pytest.mark.parametrize("cidr", ["10.0.0.0", "10.0.0.1/8", "example.org", ""])
def test_a_bad_cidr(cidr: str) -> None:
    body = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "oe-1"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": cidr}}]}]},
    }  # fmt: skip
    assert kube_rules.unknown_fields(body) == []
    with pytest.raises(kube_rules.Invalid):
        kube_rules.check(body)


@pytest.mark.parametrize(
    ("selector", "fits"),
    [("a=1", True), ("a==1,b", True), ("a!=2", True), ("!c", True), ("a=2", False), ("c", False), ("!a", False)],
)
def test_selectors(selector: str, fits: bool) -> None:
    assert selects(selector)({"metadata": {"labels": {"a": "1", "b": "2"}}}) is fits


def test_pages_and_versions() -> None:
    store = Store(lambda: 0.0)
    for name in ("a", "b", "c"):
        store.add("secrets", {"metadata": {"name": name}})
    with pytest.raises(Problem, match="already exists"):
        store.add("secrets", {"metadata": {"name": "a"}})
    first = store.page("secrets", "", 2, "", lambda item: True)
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    rest = store.page("secrets", "", 2, first["metadata"]["continue"], lambda item: True)
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]
    assert "continue" not in rest["metadata"]
    with pytest.raises(Problem, match="too old"):
        store.page("secrets", "", 2, first["metadata"]["continue"], lambda item: True)


def test_the_kubelet_expands() -> None:
    assert expand("$(A) $$(A) $A $(B) $$$$", {"A": "1"}) == "1 $(A) $A $(B) $$"
