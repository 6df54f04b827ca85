"""The vendor's generated clients, one pair for each event loop, and the one table that turns their errors into ours.

`AsyncDaytona` sits on the same clients and is not used: it reads ``.env`` and ``.env.local`` of the working directory
(a cloned repository could choose the region or switch telemetry on), opens a Socket.IO connection of its own, sets
a timer of 60 s where ours applies, and imports OpenTelemetry. The generated clients read nothing and start nothing.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from openenv_sandbox import backend_kit
from openenv_sandbox.backend_kit import Row
from openenv_sandbox.errors import (
    AuthError,
    CapabilityError,
    OpenEnvError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    SandboxGone,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from openenv_sandbox.provider import SandboxRef

T = TypeVar("T")

SDK = (
    "daytona",
    "daytona_api_client_async.api.object_storage_api",
    "daytona_api_client_async.api.sandbox_api",
    "daytona_api_client_async.api.snapshots_api",
    "daytona_toolbox_api_client_async.api.file_system_api",
    "daytona_toolbox_api_client_async.api.process_api",
    "obstore.store",
)
"""What the constructor imports; named down to the module, since the packages import their parts on first use."""

LIMITS = "https://app.daytona.io/dashboard/limits"
# Account limits come as 403 with a text, which the shared table knows.
TABLE: Mapping[int, Row] = {
    401: Row(AuthError, hint="is DAYTONA_API_KEY right, and of this DAYTONA_API_URL?"),
    402: Row(QuotaExceeded, hint="the account has no credit left"),
    403: Row(AuthError, hint="the key lacks a permission; see its scopes in the dashboard"),
    404: Row(SandboxGone),
    410: Row(SandboxGone),
    503: Row(ProviderUnavailable, True, "see https://status.app.daytona.io", "failed"),
}


def translate(error: Exception, *, what: str, ref: SandboxRef | None = None, started: bool = False) -> OpenEnvError:
    """Ours for any error of the SDK.

    Args:
        error: What it raised.
        what: What was attempted, as the beginning of a sentence.
        ref: The sandbox, where there is one.
        started: The request may have had an effect although no good answer came.
    """
    if isinstance(error, OpenEnvError):
        return error
    said = message(error)
    ours = backend_kit.translate(error, provider="daytona", what=what, ref=ref, acted=started, said=said, table=TABLE)
    if "maximum allowed per sandbox" in said.lower():
        hint = f"ask for less, or raise the limit: {LIMITS}"
        return CapabilityError(ours.message, field="resources", hint=hint, provider="daytona", ref=ref)
    if isinstance(ours, QuotaExceeded) and getattr(error, "status", None) != 402:
        # A limit on what runs at once: the next sandbox that ends lifts it.
        hint = f"delete what you do not need, or raise the limit: {LIMITS}"
        return RateLimited(ours.message, hint=hint, provider="daytona", ref=ref)
    return ours


def message(error: Exception) -> str:
    """The sentence in the body of an answer."""
    body = str(getattr(error, "body", None) or "")
    try:
        data = json.loads(body)
        return str(data.get("message") or data.get("error") or body)[:1000]
    except (ValueError, AttributeError):
        # Never the error's own text: the SDK writes the headers of the answer into it.
        return (body or str(getattr(error, "reason", None) or f"status {getattr(error, 'status', None)}")).strip()[:300]


class Clients:
    """The API's two clients on one loop."""

    def __init__(self, api_url: str, headers: Mapping[str, str]) -> None:
        import daytona_api_client_async as api
        import daytona_toolbox_api_client_async as toolbox

        mimetypes.guess_type("data")  # reads /etc/mime.types once; the SDK would do so on the loop, at the first upload
        # Commands that hold a server each hold a connection: no bound here, the start gate is core's.
        self.main = api.ApiClient(api.Configuration(host=api_url, connection_pool_maxsize=0))
        self.box = toolbox.ApiClient(toolbox.Configuration(host="", connection_pool_maxsize=0))
        self.main.default_headers.update(headers)
        self.box.default_headers.update(headers)
        self.sandboxes = api.SandboxApi(self.main)
        self.snapshots = api.SnapshotsApi(self.main)
        self.storage = api.ObjectStorageApi(self.main)

    def toolbox(self, base_url: str) -> tuple[Any, Any]:
        """The process and the file API of one sandbox."""
        import daytona_toolbox_api_client_async as toolbox

        there = _At(self.box, base_url)
        return toolbox.ProcessApi(there), toolbox.FileSystemApi(there)

    async def close(self) -> None:
        """Close both sessions."""
        await self.main.rest_client.close()
        await self.box.rest_client.close()


class _At:
    """A client whose requests go to one sandbox: the SDK's have one host each, and a session of their own."""

    def __init__(self, client: Any, base_url: str) -> None:
        self._client, self._base_url = client, base_url

    def param_serialize(self, *args: Any, **kw: Any) -> Any:
        return self._client.param_serialize(*args, **{**kw, "_host": self._base_url})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Api:
    """One account as the provider sees it.

    Args:
        api_url: Where its API is.
        headers: Authorization, and the organization where a token needs it; secret.
        timeout_s: For one request, in seconds.
    """

    def __init__(self, api_url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url, self.timeout_s = api_url.rstrip("/"), float(timeout_s)
        # Certificates are read from disk.
        make = partial(asyncio.to_thread, Clients, self.url, dict(headers))
        self.clients = backend_kit.PerLoop[Clients](make, Clients.close)

    async def call(
        self,
        what: str,
        fn: Callable[[Clients], Awaitable[T]],
        *,
        ref: SandboxRef | None = None,
        started: bool = False,
        timeout: float | None = None,
    ) -> T:
        """``fn(clients)`` within ``timeout`` seconds.

        Raises:
            OpenEnvError: What `translate` makes of the SDK's error.
        """
        try:
            async with self.clients.use() as clients:
                return await asyncio.wait_for(fn(clients), timeout or self.timeout_s)
        except Exception as error:
            raise translate(error, what=what, ref=ref, started=started) from error

    async def aclose(self) -> None:
        """Close the clients of the running loop."""
        await self.clients.aclose()
