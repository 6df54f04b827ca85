"""Options that e2b and novita have in common."""

from __future__ import annotations

from pydantic import Field

from openenv_sandbox.options import ProviderOptions, trusted


class CloudOptions(ProviderOptions):
    """Options of both backends.

    Attributes:
        domain: Of the service, instead of the SDK's variable.
        api_url: Of its control plane.
        sandbox_url: Of the daemon inside sandboxes, where a gateway of your own leads to it.
        gateway: Where ports of sandboxes are dialled instead of their public address, e.g. ``http://127.0.0.1:8080``.
        max_lifetime_s: The longest your plan lets a sandbox live.
        request_timeout_s: For one request.
        build_folders: Folders are built by the service. False: by the local docker, and pushed to ``[image] registry``;
            for Dockerfiles that the service cannot build.
        keep_openenv: Folders are built as their author wrote them, without installing the running openenv.
    """

    domain: str | None = trusted()
    api_url: str | None = trusted()
    sandbox_url: str | None = trusted()
    gateway: str | None = trusted(pattern=r"^https?://[^/:@\s]+:[0-9]+$")
    max_lifetime_s: float = Field(default=86_400.0, gt=0)
    request_timeout_s: float = Field(default=60.0, gt=0)
    build_folders: bool = True
    keep_openenv: bool = False
