"""Which cluster and namespace: a kubeconfig, read without the SDK."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from openenv_sandbox.errors import ConfigError

_MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Where:
    """Which cluster and namespace the options and the kubeconfig name; read from files, without the SDK.

    Raises:
        ConfigError: There is no kubeconfig, or no such context in it.
    """

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        self.context = context
        paths = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        files = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
        self.paths: str | None = os.pathsep.join(str(path) for path in files if path.is_file()) or None
        if self.paths is None and not kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST"):
            self.server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ.get('KUBERNETES_SERVICE_PORT')}"
            mounted = _MOUNTED / "namespace"
            self.namespace = namespace or (mounted.read_text().strip() if mounted.is_file() else "default")
            return
        if self.paths is None:
            raise ConfigError(
                f"no kubeconfig at {paths}", provider="kubernetes", hint="set KUBECONFIG or the option kubeconfig"
            )
        self.server, named = _look_up(self.paths, context)
        self.namespace = namespace or named or "default"

    @property
    def in_cluster(self) -> bool:
        """Whether this process runs in the cluster and logs in as its own service account."""
        return self.paths is None


def _look_up(paths: str, context: str | None) -> tuple[str, str | None]:
    """Address of the server and namespace of a context; the first file that defines a name wins."""
    import yaml

    current: str | None = context
    found: dict[str, dict[str, Any]] = {"contexts": {}, "clusters": {}}
    for path in paths.split(os.pathsep):
        try:
            config = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
            current = current or config.get("current-context")
            for kind, table in found.items():
                for item in config.get(kind) or []:
                    table.setdefault(item["name"], item[kind[:-1]] or {})
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no kubeconfig: {type(error).__name__}", provider="kubernetes") from None
    chosen = found["contexts"].get(current or "")
    cluster = found["clusters"].get(chosen.get("cluster", "")) if chosen else None
    if chosen is None or not cluster or "server" not in cluster:
        known = ", ".join(sorted(found["contexts"])) or "none"
        raise ConfigError(
            f"the kubeconfig has no usable context {current!r}; known: {known}",
            provider="kubernetes", hint="set the option context",
        )  # fmt: skip
    return str(cluster["server"]).rstrip("/"), chosen.get("namespace")
