"""Pods of any Kubernetes cluster, by its API server alone: no Service, no Ingress, no helper program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from openenv_providers._kube_config import Where
from openenv_providers._kube_objects import Profile
from openenv_providers._kube_provider import KubeProvider
from openenv_sandbox.capabilities import Capabilities, ExecCapabilities
from openenv_sandbox.errors import OpenEnvError
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import Check, default_check
from openenv_sandbox.values import Verified


class Options(ProviderOptions):
    """Options of kubernetes."""

    kubeconfig: str | None = trusted(None, description="Path of the kubeconfig; None: KUBECONFIG or ~/.kube/config.")
    context: str | None = trusted(None, description="Its context; None: the current one.")
    namespace: str | None = trusted(None, description="None: the context's.")
    service_account: str | None = Field(default=None, description="Pods run as it; its token is never mounted.")
    image_pull_secrets: tuple[str, ...] = Field(
        default=(), description="Secrets of the namespace with registry logins."
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels of the nodes that may run Pods.")
    tolerations: tuple[dict[str, Any], ...] = Field(default=(), description="As in a Pod.")
    runtime_class: str | None = Field(default=None, description="A RuntimeClass, such as one of gVisor's.")
    runtime_isolation: Literal["container", "gvisor", "vm"] = Field(
        default="container", description="What that runtime class puts between Pods and their node."
    )
    gpu_label: str | None = Field(default=None, description="The node label that holds the model of a GPU.")
    network_policy: Literal["unknown", "enforced"] = Field(
        default="unknown", description="`enforced`: the cluster's network plugin enforces NetworkPolicies."
    )


class KubernetesProvider(KubeProvider):
    """Pods of any Kubernetes cluster."""

    name: ClassVar[str] = "kubernetes"
    title: ClassVar[str] = "Kubernetes"
    extra: ClassVar[str | None] = "kubernetes"
    Options = Options
    capabilities: ClassVar[Capabilities] = Capabilities(
        images=frozenset({"ref"}),
        private_images=True,
        start="command",
        exec=ExecCapabilities(stdin_stream=False, env=False, cwd=False, user=False),
        ports="any",
        protocols=frozenset({"http", "tcp"}),
        isolation="container",
        hardening=True,
        gpus=("*",),
        lifetime="server-fixed",
        dedupes_key=True,
        create_settle_s=60.0,
    )
    verified: ClassVar[Verified] = Verified(
        "emulator", sdk="kubernetes 37.0.1", date="2026-11-30", note="no real cluster"
    )

    @classmethod
    def check(cls, options: Any = None) -> Check:
        found = default_check(cls)
        if not found.ready:
            return found
        try:
            chosen = cls.parse_options(options)
            Where(chosen.kubeconfig, chosen.context, chosen.namespace)
        except OpenEnvError as error:
            return Check(False, error.message, error.hint or "")
        return Check(True)

    def effective_capabilities(self) -> Capabilities:
        caps = replace(self.capabilities, isolation=self.options.runtime_isolation)
        if self.options.network_policy == "enforced":
            caps = replace(caps, network=frozenset({"full", "none", "cidr4", "cidr6"}))
        return caps

    @property
    def profile(self) -> Profile:
        chosen = self.options
        return Profile(
            service_account=chosen.service_account, pull_secrets=chosen.image_pull_secrets,
            node_selector=chosen.node_selector, tolerations=chosen.tolerations, runtime_class=chosen.runtime_class,
            gpu_label=chosen.gpu_label, isolation=chosen.runtime_isolation,
        )  # fmt: skip
