"""Kubernetes: the SDK, through a kubeconfig, against a strict API server whose Pods really run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("kubernetes.aio", reason="needs the kubernetes SDK: pip install 'openenv[kubernetes]'")
pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")

from openenv_providers.kubernetes import KubernetesProvider

from tests.emulators.faces.kube_face import KubeFace, kubeconfig
from tests.emulators.proof import Emulated, EmulatorProof

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.emulators.engine import Engine

NO_TOKEN = "a port-forward is part of the API: whoever may use that reaches the port, and nobody else"

LATE = "gc removes the Secret before the Pod appears: test_kubernetes_own.py, test_a_pod_that_appears_after_gc"


class TestKubernetes(EmulatorProof):
    @pytest.fixture
    def emulated(self, engine: Engine, tmp_path: Path) -> Iterator[Emulated]:
        from tests.emulators.engine import Front

        face = KubeFace(engine)
        with Front(engine, face) as front:
            wrong = kubeconfig(tmp_path, front.url, token="kube-token-of-nobody", name="wrong")
            yield Emulated(
                engine,
                front,
                face,
                KubernetesProvider,
                env={"KUBECONFIG": kubeconfig(tmp_path, front.url)},
                wrong_auth={"KUBECONFIG": wrong},
                wrong_token=NO_TOKEN,
                expire=NO_TOKEN,
                skip={"test_killed_child[request]": LATE},
            )
        assert face.warnings == []
        assert face.left() == [], "Secrets and NetworkPolicies that are left"
