"""Containers of one test."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from openenv_sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    import docker
    from openenv_providers.docker import DockerProvider

    from openenv_sandbox.provider import Prepared, Sandbox

SLEEP = ("sleep", "600")


class Docker:
    """Makes containers through the provider under a label of its own, and counts what is left of them."""

    def __init__(self, provider: DockerProvider, engine: docker.DockerClient, prepared: Prepared) -> None:
        self.provider, self.engine, self.prepared = provider, engine, prepared
        self.run = f"t{secrets.token_hex(6)}"

    def key(self) -> str:
        return f"oe-{self.run[:8]}-{secrets.token_hex(6)}"

    async def create(self, *, key: str | None = None, prepared: Prepared | None = None, **fields: Any) -> Sandbox:
        fields = {"command": SLEEP, **fields}
        prepared = prepared or self.prepared
        labels = {**fields.pop("labels", {}), "oe-run": self.run, "oe-install": "tests"}
        spec = SandboxSpec(image=prepared.ref, **fields).model_copy(update={"labels": labels})
        return await self.provider.create(prepared, spec, key=key or self.key())

    def containers(self) -> list[Any]:
        """Those of this test, in any state."""
        return list(self.engine.containers.list(all=True, filters={"label": f"oe-run={self.run}"}))
