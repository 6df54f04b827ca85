"""Options of aca, and which ways to log in are there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from openenv_providers._aca_errors import LOGIN, NAME
from openenv_providers._aca_preview import endpoint_for
from openenv_providers._aca_values import Login
from openenv_sandbox.errors import ProviderUnavailable
from openenv_sandbox.options import ProviderOptions, trusted
from openenv_sandbox.provider import Check

TOKEN = "AZURE_SANDBOX_TOKEN"


class AcaOptions(ProviderOptions):
    """Options of aca.

    Attributes:
        region: Of the sandbox group, e.g. ``westus2``.
        subscription_id: Instead of AZURE_SUBSCRIPTION_ID.
        resource_group: Holds the sandbox group.
        sandbox_group: Must exist; none is made.
        credential: ``default`` asks azure-identity's ways one after the other; ``managed-identity`` only the machine's;
            ``token`` takes an access token from AZURE_SANDBOX_TOKEN.
        client_id: Of a user-assigned managed identity.
        idle_s: Unused for so long, a sandbox is suspended, in seconds. A living owner keeps it in use.
        allow_from: Networks (CIDR) that reach the open ports; empty for everybody.
        block_metadata: Denies the workload the address where a machine's identity answers.
        pull_identity: Resource id of a managed identity that may pull from ``pull_registry``.
        pull_registry: Host that it is used for, and no other.
        endpoint: Data plane instead of the region's.
        audience: What tokens are asked for, instead of the service's own.
        ca_file: Authorities to accept, instead of the system's.
        gateway: ``host:port`` that is dialled for ports, whatever name their address has.
    """

    region: str | None = Field(default=None, pattern=r"^[a-z0-9-]+$")
    subscription_id: str | None = None
    resource_group: str | None = None
    sandbox_group: str | None = None
    credential: Literal["default", "managed-identity", "token"] = "default"
    client_id: str | None = None
    idle_s: int = Field(default=900, ge=180)
    allow_from: tuple[str, ...] = Field(default=(), max_length=10)
    block_metadata: bool = True
    pull_identity: str | None = trusted()
    pull_registry: str | None = trusted()
    endpoint: str | None = trusted(pattern=r"^https://")
    audience: str | None = trusted()
    ca_file: str | None = trusted()
    gateway: str | None = trusted(pattern=r"^[^:/]+:[0-9]+$")

    @model_validator(mode="after")
    def _an_identity_has_a_registry(self) -> AcaOptions:
        if (self.pull_identity is None) != (self.pull_registry is None):
            raise ValueError("pull_identity and pull_registry belong together")
        return self

    def login(self) -> Login:
        """For the service's client.

        Raises:
            ProviderUnavailable: The options do not name a sandbox group.
        """
        where = {name: value or "" for name, value in self.where().items()}
        if missing := [name for name, value in where.items() if not value]:
            text = f"no sandbox group is named: {', '.join(missing)} not set"
            raise ProviderUnavailable(text, provider=NAME, hint="they are options of aca: `openenv providers aca`")
        return Login(
            endpoint=where["region"],
            subscription=where["subscription_id"],
            resource_group=where["resource_group"],
            group=where["sandbox_group"],
            audience=self.audience,
            kind=self.credential,
            client_id=self.client_id,
            token=lambda: os.environ.get(TOKEN, ""),
            ca_file=self.ca_file,
        )

    def where(self) -> dict[str, str | None]:
        """What names the sandbox group."""
        return {
            "region": self.endpoint or (endpoint_for(self.region) if self.region else None),
            "subscription_id": self.subscription_id or os.environ.get("AZURE_SUBSCRIPTION_ID"),
            "resource_group": self.resource_group,
            "sandbox_group": self.sandbox_group,
        }


def can_log_in(kind: str) -> Check:
    """Whether variables or files of a login are there; nothing is asked."""
    if kind == "managed-identity":
        return Check(True)
    if kind == "token":
        text = (
            "az account get-access-token --scope https://dynamicsessions.io/.default, then export AZURE_SANDBOX_TOKEN=…"
        )
        return Check(True) if os.environ.get(TOKEN) else Check(False, f"{TOKEN} not set", text)
    have = os.environ.get
    if have("AZURE_CLIENT_ID") and have("AZURE_TENANT_ID"):
        if have("AZURE_CLIENT_SECRET") or have("AZURE_CLIENT_CERTIFICATE_PATH") or have("AZURE_FEDERATED_TOKEN_FILE"):
            return Check(True)
        return Check(
            False, "AZURE_CLIENT_SECRET not set", "or AZURE_CLIENT_CERTIFICATE_PATH, AZURE_FEDERATED_TOKEN_FILE"
        )
    if have("IDENTITY_ENDPOINT") or have("MSI_ENDPOINT"):
        return Check(True)
    folder = Path(have("AZURE_CONFIG_DIR") or Path.home() / ".azure")
    if any((folder / name).is_file() for name in ("msal_token_cache.json", "msal_token_cache.bin")):
        if shutil.which("az"):
            return Check(True)
        return Check(False, f"{folder} holds a login, but az is not on PATH", "install the Azure CLI")
    return Check(False, "no login found", f"{LOGIN} (managed-identity, token)")
